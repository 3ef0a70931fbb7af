"""Saving before a time limit: when to leave, from how long updates, iterations and saves have taken."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping

MARGIN_S = 10.0  # for leaving itself
SAVE_TIME_FACTOR = 1.5  # than any save before may the next one take
ITERATION_TIME_FACTOR = 1.25  # than any iteration before may the next one be
FIRST_SAVE_BYTES_PER_S = 50e6  # of a disk on which nothing was saved yet


class TimeLimit:
    """When a run must leave to have saved before `limit` (seconds since 1970; None: never), as far as one knows.

    What is known are the longest times so far: an update that was begun is finished before anything can be saved.
    """

    def __init__(self, limit: float | None, save_bytes: float, rows: Iterable[Mapping[str, float]] = ()) -> None:
        self.limit = math.inf if limit is None else limit
        self._save_s = save_bytes / FIRST_SAVE_BYTES_PER_S
        self._update_s = self._iteration_s = 0.0
        for row in rows:  # of a run that goes on
            self.record_iteration(row)
            self.saved(row.get("time/checkpoint", 0.0))

    def record_iteration(self, row: Mapping[str, float]) -> None:
        """Note how long an iteration took, from its metrics."""
        self._update_s = max(self._update_s, row.get("time/update", 0.0))
        self._iteration_s = max(self._iteration_s, row.get("time/iteration", 0.0) + row.get("time/evaluation", 0.0))

    def saved(self, seconds: float) -> None:
        """Note how long a checkpoint took."""
        self._save_s = max(self._save_s, seconds)

    @property
    def deadline(self) -> float:
        """The last moment to give up what is being done. An update that begins just before it still ends in time."""
        return self.limit - SAVE_TIME_FACTOR * self._save_s - ITERATION_TIME_FACTOR * self._update_s - MARGIN_S

    def next_iteration_exceeds_limit(self) -> bool:
        """Whether another iteration would be given up anyway."""
        return time.time() + ITERATION_TIME_FACTOR * (self._iteration_s - self._update_s) > self.deadline
