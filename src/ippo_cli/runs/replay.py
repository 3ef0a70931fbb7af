"""`replay.json` in a copy of a run that is executed again: where the original was evaluated, and has training samples.

`earlier_rows.jsonl` has the original's rows before the first iteration of the copy, which later rows are computed from.
The last iteration of an interrupted or extended run was evaluated although `evaluation.every` does not say so, and runs
of earlier versions have no samples of their first iteration.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

REPLAY = "replay.json"
EARLIER_ROWS = "earlier_rows.jsonl"


def write_replay(folder: Path, evaluate_at: Collection[int], sample_at: Collection[int]) -> None:
    """Write the file."""
    places = {"evaluate_at": sorted(evaluate_at), "sample_at": sorted(sample_at)}
    (folder / REPLAY).write_text(json.dumps(places) + "\n")


def write_earlier_rows(folder: Path, rows: Iterable[Mapping[str, float | None]]) -> None:
    """Write the rows of `metrics.jsonl` before those of the copy, oldest first."""
    (folder / EARLIER_ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_earlier_rows(folder: Path) -> list[dict[str, float]]:
    """The same rows, with NaN for null; empty for a run, which has all of its rows in `metrics.jsonl`."""
    file = folder / EARLIER_ROWS
    lines = file.read_text().splitlines() if file.is_file() else []
    return [{key: math.nan if value is None else value for key, value in json.loads(line).items()} for line in lines]


def read_evaluate_at(folder: Path) -> frozenset[int] | None:
    """The iterations to evaluate after; None for a run, which evaluates as its configuration says."""
    return _read_iterations(folder, "evaluate_at")


def read_sample_at(folder: Path) -> frozenset[int] | None:
    """The iterations with training samples; None for a run, which writes them as its configuration says."""
    return _read_iterations(folder, "sample_at")


def _read_iterations(folder: Path, name: str) -> frozenset[int] | None:
    file = folder / REPLAY
    return frozenset(json.loads(file.read_text())[name]) if file.is_file() else None
