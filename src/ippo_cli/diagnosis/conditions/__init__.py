"""Conditions of runs, one module per part of training. `registry.py` has their order."""
