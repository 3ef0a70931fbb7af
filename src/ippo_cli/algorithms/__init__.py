"""Losses and advantage estimators that an algorithm preset combines."""
