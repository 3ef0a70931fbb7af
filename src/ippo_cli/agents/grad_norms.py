"""Gradient norms of a learner's last optimizer steps, and the steps among them that exceed the others by far."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

WINDOW = 50  # steps; their median is the usual norm
MIN_STEPS = 10  # before which no step is a spike
SPIKE_FACTOR = 3.0  # a spike is this many times the median


class GradNorms:
    """Gradient norms before clipping of the last `WINDOW` applied steps; part of a checkpoint."""

    def __init__(self, recent: Iterable[float] = ()) -> None:
        self.recent = list(recent)[-WINDOW:]

    def record(self, norm: float) -> bool:
        """Add the norm of an applied step; returns whether it is a spike: above 3 times the median before it."""
        is_spike = len(self.recent) >= MIN_STEPS and norm > SPIKE_FACTOR * median(self.recent)
        self.recent = [*self.recent, norm][-WINDOW:]
        return is_spike
