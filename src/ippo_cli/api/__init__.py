"""The Python interface: train, and read, evaluate, resume and verify runs. `ippo_cli` exports it."""
