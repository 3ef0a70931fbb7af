"""What a run needs before a weight is loaded: checks, memory, and `mode=plan`."""
