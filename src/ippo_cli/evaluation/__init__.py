"""Evaluates trained weights: scores, comparisons, cross-play, export and chat."""
