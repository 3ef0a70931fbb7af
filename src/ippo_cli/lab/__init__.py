"""Experimental methods, found as entry points of `pyproject.toml`; any release may change or remove them."""
