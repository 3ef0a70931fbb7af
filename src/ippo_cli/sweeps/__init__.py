"""Sweeps: generates the jobs of a grid or a search, runs them in parallel, and records them in a folder."""
