"""Writes a run's metrics, samples and state."""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import ResumeError, StorageError, convert_storage_errors, storage_error_message
from ippo_cli.config.schema import TrackerConfig
from ippo_cli.config.secrets import redact_text
from ippo_cli.engine import distributed
from ippo_cli.reporting.metrics import is_documented
from ippo_cli.reporting.trackers.build import build_trackers
from ippo_cli.reporting.trackers.tracker import TrackerGroup
from ippo_cli.runs.faults import fault_point
from ippo_cli.runs.folder import metric_rows, overwrite_in_place, print_warning, write_atomically
from ippo_cli.runs.history import (
    HISTORY,
    format_line,
    history_bytes,
    iteration_content,
    last_config_hash,
    start_content,
)
from ippo_cli.runs.json_values import replace_non_finite
from ippo_cli.runs.records import RunRecord
from ippo_cli.runs.run_files import read_state_file

NO_SETTINGS: Mapping[str, Any] = {}


@dataclass
class RunState:
    """The contents of `run.json`, for scripts."""

    state: str = "running"  # running | done | preempted | failed
    wall_seconds: float = 0.0
    iterations: int = 0
    evaluation: dict[str, dict[str, Any]] = field(default_factory=dict)  # first, best, last: {iteration, score, ...}
    error: str | None = None
    warnings: dict[str, str] = field(default_factory=dict)  # printed warnings, by rule
    warning_iterations: dict[str, int] = field(default_factory=dict)  # when a rule first applied; 0: before training


def read_previous_state(folder: Path) -> RunState:
    """The state in `run.json` of a resumed run; the checkpoint overrides parts of it later."""
    try:
        known = read_state_file(folder).value
        return RunState(
            known["state"],
            known["wall_seconds"],
            known["iterations"],
            {name: _restore_nan(numbers) for name, numbers in known["evaluation"].items()},
            warnings=known.get("warnings", {}),
            warning_iterations=known.get("warning_iterations", {}),
        )
    except (ResumeError, KeyError):
        return RunState()


class RunLog:
    """Writes a run's files on rank 0; on other ranks every method does nothing. Does not affect training.

    A failed write is a warning: rows of `metrics.jsonl` and the state are retried, samples and curves are dropped.
    If the disk stays full, checkpoints end the run.

    `settings`: the configuration as plain values, for trackers.
    """

    def __init__(
        self, folder: Path, tracker: TrackerConfig, state: RunState, settings: Mapping[str, Any] = NO_SETTINGS
    ) -> None:
        self.folder = folder
        self.state = state
        self._is_main = distributed.is_main()
        self._last_counted_at = time.monotonic()  # `wall_seconds` includes the time up to here
        self._trackers = TrackerGroup()
        self._pending_rows: list[str] = []  # rows that are not written yet
        self._pending_history: list[str] = []  # the same of the history
        self._last_row = ""  # the newest row as written
        self._chain = ""  # of the history, see `runs/history.py`
        self._failed_files: set[str] = set()  # files with a warning and no successful write since
        distributed.run_on_main(lambda: self._start(tracker, settings))

    def _start(self, tracker: TrackerConfig, settings: Mapping[str, Any]) -> None:
        with convert_storage_errors(str(self.folder)):
            (self.folder / "samples").mkdir(exist_ok=True)
            self._trackers = build_trackers(tracker, self.folder, settings)
            self._write_state()

    @property
    def metrics_file(self) -> Path:
        return self.folder / "metrics.jsonl"

    def durable_metrics_bytes(self) -> int | None:
        """Bytes of `metrics.jsonl` that are flushed to disk; None while rows or their hashes are not written."""
        if self._pending_rows or self._pending_history:  # the disk may have space again
            with suppress(OSError):
                self._append_pending_rows()
                self._append_pending_history()
        return None if self._pending_rows or self._pending_history else self._metrics_file_size()

    def _metrics_file_size(self) -> int:
        return self.metrics_file.stat().st_size if self.metrics_file.exists() else 0

    def record_start(self, chain: str, iteration: int, environment: Mapping[str, Any]) -> str:
        """Record a start after `iteration` iterations in the history; returns its chain.

        `chain`: that of the resumed checkpoint; later lines are dropped, since the run repeats them.
        """
        if not self._is_main:
            return ""
        self._chain = chain
        with self._warn_on_storage_error(HISTORY):
            if (size := history_bytes(self.folder, chain)) is not None and (self.folder / HISTORY).exists():
                os.truncate(self.folder / HISTORY, size)
            self._add_to_history(
                start_content(self.folder, iteration, environment, last_config_hash(self.folder) if chain else "")
            )
        return self._chain

    def record_iteration(self, iteration: int) -> str:
        """Record the newest row and the sample files of an iteration in the history; returns its chain."""
        if self._is_main:
            with self._warn_on_storage_error(HISTORY):
                self._add_to_history(iteration_content(self.folder, iteration, self._last_row))
        return self._chain

    def _add_to_history(self, content: Mapping[str, Any]) -> None:
        line, self._chain = format_line(self._chain, content)
        self._pending_history.append(line)
        self._append_pending_history()

    def _append_pending_history(self) -> None:
        _append_lines(self.folder / HISTORY, self._pending_history)

    def drop_later_iterations(self, size: int, iteration: int) -> None:
        """Drop rows after the checkpoint (its `size` in bytes and `iteration`); the resumed run writes them again.

        Drops the sample files of later iterations, too: the resumed run may write others, or none. Raises `ResumeError`
        for an unreadable row.
        """
        if not self._is_main:
            return
        written = self._metrics_file_size()
        if written < size:
            print_warning(f"{self.metrics_file} is shorter than when the checkpoint was saved: rows of it are missing")
        if written > size:
            os.truncate(self.metrics_file, size)
        if self.metrics_file.exists():
            ends = [end for row, end in metric_rows(self.metrics_file) if row["iteration"] <= iteration]
            os.truncate(self.metrics_file, max(ends, default=0))
        for file in RunRecord(self.folder).sample_files:
            if file.iteration > iteration:
                file.path.unlink()

    def log_row(self, row: Mapping[str, float]) -> None:
        """Write one row to `metrics.jsonl` and to the trackers. Non-finite numbers become null."""
        unknown = [key for key in row if not is_documented(key)]
        assert not unknown, f"metrics without an entry in reporting/metrics.py: {unknown}"
        if not self._is_main:
            return
        finite = {key: value if math.isfinite(value) else None for key, value in row.items()}
        self._last_row = json.dumps(finite, allow_nan=False) + "\n"
        self._pending_rows.append(self._last_row)
        with self._warn_on_storage_error("metrics.jsonl"):
            self._append_pending_rows()
        self.state.iterations = int(row["iteration"])
        self.save_state()
        self._trackers.log(finite, self.state.iterations)

    def _append_pending_rows(self) -> None:
        _append_lines(self.metrics_file, self._pending_rows, lambda: fault_point("log"))

    @contextmanager
    def _warn_on_storage_error(self, file_name: str) -> Iterator[None]:
        """Turn a failed write into a warning, once until the next successful write of the file."""
        try:
            yield
        except Exception as error:
            reason = storage_error_message(error)
            if reason is None:
                raise
            if file_name not in self._failed_files:
                print_warning(f"{self.folder}/{file_name} cannot be written ({reason}); training continues")
            self._failed_files.add(file_name)
        else:
            self._failed_files.discard(file_name)

    def read_last_rows(self, count: int) -> list[dict[str, float]]:
        """The last iterations of `metrics.jsonl`, oldest first; empty on other ranks than 0."""
        if not self._is_main or not self.metrics_file.exists():
            return []
        rows = [row for row, _ in deque(metric_rows(self.metrics_file), maxlen=count)]
        iterations = [row for row in rows if row["iteration"]]
        return [_restore_nan(row) for row in iterations]

    def record_warnings(self, unusual: Mapping[str, str], iteration: int | None = None) -> list[str]:
        """Record warnings by rule; returns the texts of rules that are new in this run.

        `iteration`: where they belong; by default the last logged one.
        """
        new = {rule: text for rule, text in unusual.items() if rule not in self.state.warnings}
        if new:
            self.state.warnings |= new
            self.state.warning_iterations |= dict.fromkeys(
                new, self.state.iterations if iteration is None else iteration
            )
            self.save_state()
        return list(new.values())

    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write samples as JSON lines, with control characters escaped."""
        if self._is_main and rows:
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            with self._warn_on_storage_error("samples/"):
                write_atomically(self.folder / "samples" / f"{name}.jsonl", lines)
            self._trackers.log_samples(name, rows)

    def log_distributions(self, iteration: int, values: Mapping[str, Sequence[float]]) -> None:
        """Send the values of an iteration's episodes on rank 0, by name, to the trackers."""
        if self._is_main:
            self._trackers.log_distributions(iteration, values)

    def write_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace a table, which is rewritten after each iteration."""
        if self._is_main:
            with self._warn_on_storage_error(name):
                write_atomically(self.folder / name, json.dumps(rows, indent=1) + "\n")

    @property
    def best_evaluation(self) -> Mapping[str, Any] | None:
        """The evaluation with the highest score; None while no score is a number."""
        best = self.state.evaluation.get("best")
        return None if best is None or math.isnan(best["score"]) else best

    def record_evaluation(self, iteration: int, primary_metric: str, metrics: Mapping[str, float]) -> bool:
        """Record an evaluation; True if it is the best so far. NaN, of no scored row, is never the best."""
        score = metrics[primary_metric]
        entry = {"iteration": iteration, "score": score, **metrics}
        best = self.best_evaluation
        improved = not math.isnan(score) and (best is None or score > best["score"])
        self.state.evaluation.setdefault("first", entry)
        self.state.evaluation["last"] = entry
        if improved:
            self.state.evaluation["best"] = entry
        self.save_state()
        return improved

    def finish(self, state: str, error: str | None = None) -> None:
        """Record the final state. Raises `StorageError` if a completed run cannot write its state or rows."""
        self.state.state, self.state.error = state, None if error is None else redact_text(error)
        if self._pending_rows:
            with self._warn_on_storage_error("metrics.jsonl"):
                self._append_pending_rows()
        self.save_state(last=True)
        self._trackers.finish(state)
        if not self._trackers.problems.items() <= self.state.warnings.items():
            self.save_state(last=True)
        missing = self._failed_files & {"run.json", "metrics.jsonl"}
        if state == "done" and missing:
            raise StorageError(f"the run is done, but its {' and '.join(sorted(missing))} could not be written")

    def save_state(self, *, last: bool = False) -> None:
        """Write `run.json`; with `last`, overwrite it in place if the disk is full."""
        self.state.warnings |= self._trackers.problems
        now = time.monotonic()
        self.state.wall_seconds, self._last_counted_at = (
            round(self.state.wall_seconds + now - self._last_counted_at, 3),
            now,
        )
        if not self._is_main:
            return
        with self._warn_on_storage_error("run.json"):
            try:
                self._write_state()
            except OSError:
                if not last or not self._overwrite_state():
                    raise

    def _write_state(self) -> None:
        write_atomically(self.folder / "run.json", _format_state(self.state))

    def _overwrite_state(self) -> bool:
        """Overwrite the state in place, without the error message if it does not fit; False if that fails."""
        for error in (self.state.error, None):
            with suppress(OSError):
                overwrite_in_place(self.folder / "run.json", _format_state(replace(self.state, error=error)))
                return True
        return False


def _append_lines(target: Path, lines: list[str], before_flush: Callable[[], None] = lambda: None) -> None:
    """Append all lines to a file, flush it to disk and clear the list, or append none of them."""
    if not lines:
        return
    size = target.stat().st_size if target.exists() else 0
    try:
        with target.open("a") as file:
            file.writelines(lines)
            before_flush()
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            os.truncate(target, size)
        raise
    lines.clear()


def _format_state(state: RunState) -> str:
    return json.dumps(replace_non_finite(asdict(state)), indent=1, allow_nan=False) + "\n"


def _restore_nan(row: Mapping[str, float | None]) -> dict[str, float]:
    """A row with null replaced by NaN."""
    return {key: math.nan if value is None else value for key, value in row.items()}
