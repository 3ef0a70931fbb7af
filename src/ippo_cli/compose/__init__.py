"""From a command line to a checked configuration: Hydra, user files, aliases, resuming, errors, exit codes."""
