"""Sweeps: the jobs of a grid or a search, how they run in parallel, and the folder that records them."""
