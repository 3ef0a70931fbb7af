"""Sweeps: their jobs, how these run side by side, searches, and what a sweep's folder says."""
