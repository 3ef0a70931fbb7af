"""What a run reports: metrics, warnings, console output, samples and trackers."""
