"""Batched generation and episode collection."""
