"""Worlds: environments that answer by themselves and pay as they go, on the packages' own code."""
