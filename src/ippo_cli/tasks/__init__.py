"""Tasks: sources of examples, prompts of agents, and episodes."""
