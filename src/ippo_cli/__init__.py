"""Train language models with PPO and Independent PPO from the command line."""

__version__ = "0.1.0"
