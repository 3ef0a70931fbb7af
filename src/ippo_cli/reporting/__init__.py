"""Reports of a run: metrics, warnings, console output, samples and trackers."""
