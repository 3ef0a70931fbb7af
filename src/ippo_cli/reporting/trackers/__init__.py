"""Trackers: one file per tracker; only that file imports the tracker's package."""
