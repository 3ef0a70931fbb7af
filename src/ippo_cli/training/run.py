"""What a run writes while it goes on: metrics, samples, and its state."""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ippo_cli.config.schema import TrackerConfig
from ippo_cli.engine import distributed
from ippo_cli.training.folder import write_atomically
from ippo_cli.training.metrics import is_documented


@dataclass
class RunState:
    """`run.json`: what scripts ask of a run."""

    state: str = "running"  # running | done | preempted | failed
    wall_seconds: float = 0.0
    iterations: int = 0
    evaluation: dict[str, dict[str, Any]] = field(default_factory=dict)  # first, best, last: {iteration, score, ...}
    error: str | None = None
    warnings: dict[str, str] = field(default_factory=dict)  # what was said to be unusual, by rule


def state_before(folder: Path) -> RunState:
    """What `run.json` says of a run that goes on; what a checkpoint knows better is taken from there later."""
    try:
        known = json.loads((folder / "run.json").read_text())
        return RunState(
            known["state"], known["wall_seconds"], known["iterations"], known["evaluation"],
            warnings=known.get("warnings", {}),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return RunState()


class Run:
    """Rank 0 writes; on other ranks every method does nothing. Nothing that training reads comes back from here."""

    def __init__(self, folder: Path, tracker: TrackerConfig, state: RunState) -> None:
        self.folder = folder
        self.state = state
        self._main = distributed.is_main()
        self._counted = time.monotonic()  # up to here time is part of `wall_seconds`
        self._wants_board = self._main and tracker.tensorboard
        self._board = None
        if self._main:
            (folder / "samples").mkdir(exist_ok=True)
            self.save_state()

    @property
    def metrics_file(self) -> Path:
        return self.folder / "metrics.jsonl"

    def metrics_size(self) -> int:
        """Bytes of `metrics.jsonl` that are safely on disk."""
        return self.metrics_file.stat().st_size if self.metrics_file.exists() else 0

    def truncate_metrics(self, size: int) -> None:
        """Drop rows that were written after the checkpoint that is resumed; they will be written again."""
        if self._main and self.metrics_size() > size:
            os.truncate(self.metrics_file, size)

    def log(self, row: Mapping[str, float]) -> None:
        """One row of `metrics.jsonl`, and the same numbers for TensorBoard. Numbers that are not finite become null."""
        unknown = [key for key in row if not is_documented(key)]
        assert not unknown, f"metrics without an entry in training/metrics.py: {unknown}"
        if not self._main:
            return
        finite = {key: value if math.isfinite(value) else None for key, value in row.items()}
        with self.metrics_file.open("a") as file:
            file.write(json.dumps(finite, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.state.iterations = int(row["iteration"])
        self.save_state()
        if self._wants_board:
            self._draw(row)

    def last_rows(self, count: int) -> list[dict[str, float]]:
        """The newest iterations of `metrics.jsonl`, oldest first, on rank 0."""
        if not self._main or not self.metrics_file.exists():
            return []
        with self.metrics_file.open() as file:
            rows = [json.loads(line) for line in deque(file, maxlen=count)]
        iterations = [row for row in rows if row["iteration"]]
        return [{key: math.nan if value is None else value for key, value in row.items()} for row in iterations]

    def note(self, unusual: Mapping[str, str]) -> list[str]:
        """Keep what was found unusual; of that, what was not said before in this run."""
        new = {rule: text for rule, text in unusual.items() if rule not in self.state.warnings}
        if new:
            self.state.warnings |= new
            self.save_state()
        return list(new.values())

    def _draw(self, row: Mapping[str, float]) -> None:
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            # What an earlier process drew from here on was abandoned with it.
            self._board = SummaryWriter(str(self.folder / "tb"), purge_step=int(row["iteration"]))
        for key, value in row.items():
            if key != "iteration":
                self._board.add_scalar(key, value, int(row["iteration"]))
        self._board.flush()

    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Model text as data: one JSON object per line, every control character escaped."""
        if self._main and rows:
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            write_atomically(self.folder / "samples" / f"{name}.jsonl", lines)

    def evaluated(self, iteration: int, headline: str, metrics: Mapping[str, float]) -> bool:
        """Note an evaluation; True where it is the best one so far."""
        entry = {"iteration": iteration, "score": metrics[headline], **metrics}
        best = self.state.evaluation.get("best")
        improved = best is None or entry["score"] > best["score"]
        self.state.evaluation.setdefault("first", entry)
        self.state.evaluation["last"] = entry
        if improved:
            self.state.evaluation["best"] = entry
        self.save_state()
        return improved

    def finish(self, state: str, error: str | None = None) -> None:
        """Say how the run ended."""
        self.state.state, self.state.error = state, error
        self.save_state()
        if self._board is not None:
            self._board.close()

    def save_state(self) -> None:
        now = time.monotonic()
        self.state.wall_seconds, self._counted = round(self.state.wall_seconds + now - self._counted, 3), now
        if self._main:
            write_atomically(self.folder / "run.json", json.dumps(vars(self.state), indent=1) + "\n")
