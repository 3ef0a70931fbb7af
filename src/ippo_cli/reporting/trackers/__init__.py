"""Trackers: one file for each, which alone imports its package."""
