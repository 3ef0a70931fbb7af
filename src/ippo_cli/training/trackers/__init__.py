"""Trackers: who is told of every row of `metrics.jsonl`. One file for each; what they need is imported there alone."""
