"""Checks and resource estimates before weights are loaded, and `mode=plan`."""
