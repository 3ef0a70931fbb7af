"""What a tracker is, and all of a run's together: one that fails is told of once, and training goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ippo_cli.config.errors import storage_error_message
from ippo_cli.config.secrets import redact_text
from ippo_cli.runs.folder import print_warning
from ippo_cli.user_code.errors import format_user_error

Row = Mapping[str, float | None]
"""Metrics by name; None stands for a number that is not finite."""


class TrackerError(Exception):
    """What a tracker could not do, in words for users; `missed` counts the rows that are not recorded there."""

    def __init__(self, reason: str, missed: int = 1) -> None:
        super().__init__(reason)
        self.missed = missed


class Tracker(Protocol):
    """Is called on rank 0 alone. Whatever it raises is a warning; what may take long it does somewhere else."""

    name: str  # what a warning calls it

    def log(self, row: Row, iteration: int) -> None:
        """A row that has been written."""
        ...

    def samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """A table of samples as it lies below `samples/`; the name ends in `_` and the iteration."""
        ...

    def finish(self, state: str) -> None:
        """The run has ended: done, preempted or failed."""
        ...


class TrackerGroup:
    """All trackers of a run, of which none can end it."""

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self._trackers = list(trackers)
        self._rows = 0
        self._missed_rows: dict[str, int] = {}  # rows, of those that have failed
        self.problems: dict[str, str] = {}  # what went wrong first, by the tracker's name

    def log(self, row: Row, iteration: int) -> None:
        """Tell all trackers of a row."""
        self._rows += 1
        for tracker in self._trackers:
            self._call_tracker(tracker, lambda one=tracker: one.log(row, iteration))

    def samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show all trackers a table of samples."""
        for tracker in self._trackers:
            self._call_tracker(tracker, lambda one=tracker: one.samples(name, rows), missed=0)

    def finish(self, state: str) -> None:
        """End all trackers, once, and say how many rows each has missed."""
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
        except (Exception, SystemExit) as error:  # of other people's code and servers: it may be anything
            missed = error.missed if isinstance(error, TrackerError) else missed
            self._missed_rows[tracker.name] = self._missed_rows.get(tracker.name, 0) + missed
            if tracker.name not in self.problems:
                self.problems[tracker.name] = _failure_reason(error)
                print_warning(f"{tracker.name} {self.problems[tracker.name]}; training goes on")


def _failure_reason(error: BaseException) -> str:
    """One line without secrets."""
    if isinstance(error, TrackerError):
        return " ".join(redact_text(str(error)).split())
    reason = storage_error_message(error)
    return (
        f"cannot be written ({reason})"
        if reason
        else "fails (" + " ".join(redact_text(format_user_error(error)).split()) + ")"
    )
