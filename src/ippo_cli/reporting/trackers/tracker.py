"""Tracker interface, and a run's group of trackers: a failing tracker is one warning and does not end training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ippo_cli.config.errors import storage_error_message
from ippo_cli.config.secrets import redact_text
from ippo_cli.runs.folder import print_warning
from ippo_cli.user_code.errors import format_user_error

Row = Mapping[str, float | None]
"""Metrics by name; None for non-finite numbers."""


class TrackerError(Exception):
    """A tracker's failure, as a message for users; `missed` counts the rows that are not recorded."""

    def __init__(self, reason: str, missed: int = 1) -> None:
        super().__init__(reason)
        self.missed = missed


class Tracker(Protocol):
    """A tracker, called on rank 0 only. Its exceptions become warnings; slow work must run outside these calls."""

    name: str  # for warnings

    def log(self, row: Row, iteration: int) -> None:
        """Log a row of metrics."""
        ...

    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a table of samples, as in `samples/`; the name ends in `_<iteration>`."""
        ...

    def log_distributions(self, iteration: int, values: Mapping[str, Sequence[float]]) -> None:
        """Log the values of an iteration's episodes on rank 0, by name, as histograms."""
        ...

    def finish(self, state: str) -> None:
        """Finish the run; `state`: done, preempted or failed."""
        ...


class TrackerGroup:
    """All trackers of a run; their failures do not end it."""

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self._trackers = list(trackers)
        self._rows = 0
        self._missed_rows: dict[str, int] = {}  # by name of a failed tracker
        self.problems: dict[str, str] = {}  # first problem by tracker name

    def log(self, row: Row, iteration: int) -> None:
        """Log a row to all trackers."""
        self._rows += 1
        for tracker in self._trackers:
            self._call_tracker(tracker, lambda one=tracker: one.log(row, iteration))

    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a table of samples to all trackers."""
        for tracker in self._trackers:
            self._call_tracker(tracker, lambda one=tracker: one.log_samples(name, rows), missed=0)

    def log_distributions(self, iteration: int, values: Mapping[str, Sequence[float]]) -> None:
        """Log histograms to all trackers."""
        for tracker in self._trackers:
            self._call_tracker(tracker, lambda one=tracker: one.log_distributions(iteration, values), missed=0)

    def finish(self, state: str) -> None:
        """Finish all trackers, once, and warn about missed rows."""
        ending, self._trackers = self._trackers, []
        for tracker in ending:
            self._call_tracker(tracker, lambda one=tracker: one.finish(state), missed=0)
            if missed := self._missed_rows.get(tracker.name):
                self.problems[tracker.name] += f"; it has missed {missed} of {self._rows} rows"
                print_warning(
                    f"{tracker.name} has missed {missed} of {self._rows} rows, which are all in metrics.jsonl"
                )

    def _call_tracker(self, tracker: Tracker, call: Callable[[], None], missed: int = 1) -> None:
        try:
            call()
        except (Exception, SystemExit) as error:  # third-party code and servers may raise anything
            missed = error.missed if isinstance(error, TrackerError) else missed
            self._missed_rows[tracker.name] = self._missed_rows.get(tracker.name, 0) + missed
            if tracker.name not in self.problems:
                self.problems[tracker.name] = _failure_reason(error)
                print_warning(f"{tracker.name} {self.problems[tracker.name]}; training continues")


def _failure_reason(error: BaseException) -> str:
    """The failure as one line without secrets."""
    if isinstance(error, TrackerError):
        return " ".join(redact_text(str(error)).split())
    reason = storage_error_message(error)
    return (
        f"cannot be written ({reason})"
        if reason
        else "fails (" + " ".join(redact_text(format_user_error(error)).split()) + ")"
    )
