"""Time limit of a run: computes when to stop and save from the durations of updates, iterations and saves."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping

MARGIN_S = 10.0  # time for the shutdown
SAVE_TIME_FACTOR = 1.5  # assumed longest duration of a save, relative to the longest so far
ITERATION_TIME_FACTOR = 1.25  # the same of an iteration
FIRST_SAVE_BYTES_PER_S = 50e6  # assumed disk speed before the first save


class TimeLimit:
    """Estimates when a run must stop to save before `limit` (seconds since 1970; None: no limit).

    Uses the longest durations so far: an update in progress finishes before the run can save.
    """

    def __init__(self, limit: float | None, save_bytes: float, rows: Iterable[Mapping[str, float]] = ()) -> None:
        self.limit = math.inf if limit is None else limit
        self._save_s = save_bytes / FIRST_SAVE_BYTES_PER_S
        self._update_s = self._iteration_s = self._ahead_s = 0.0
        for row in rows:  # of a resumed run
            self.record_iteration(row)
            self.record_save(row.get("time/checkpoint", 0.0))

    def record_iteration(self, row: Mapping[str, float]) -> None:
        """Record the duration of an iteration, from its metrics."""
        self._update_s = max(self._update_s, row.get("time/update", 0.0))
        self._ahead_s = max(self._ahead_s, row.get("time/ahead", 0.0))
        self._iteration_s = max(self._iteration_s, row.get("time/iteration", 0.0) + row.get("time/evaluation", 0.0))

    def record_save(self, seconds: float) -> None:
        """Record the duration of a save."""
        self._save_s = max(self._save_s, seconds)

    @property
    def deadline(self) -> float:
        """The latest time to stop. An update, or a concurrent collection of episodes, that starts just before it still
        finishes in time.
        """
        longest_s = max(self._update_s, self._ahead_s)
        return self.limit - SAVE_TIME_FACTOR * self._save_s - ITERATION_TIME_FACTOR * longest_s - MARGIN_S

    def next_iteration_exceeds_limit(self) -> bool:
        """Whether another iteration would be aborted by the deadline."""
        return time.time() + ITERATION_TIME_FACTOR * (self._iteration_s - self._update_s) > self.deadline
