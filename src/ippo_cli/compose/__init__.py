"""Configuration from a command line: Hydra, user files, aliases, resume, errors, exit codes."""
