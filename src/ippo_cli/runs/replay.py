"""`replay.json` in a copy of a run that is executed again: where the original was evaluated, and has training samples.

The last iteration of an interrupted or extended run was evaluated although `evaluation.every` does not say so, and runs
of earlier versions have no samples of their first iteration.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

REPLAY = "replay.json"


def write_replay(folder: Path, evaluate_at: Collection[int], sample_at: Collection[int]) -> None:
    """Write the file."""
    places = {"evaluate_at": sorted(evaluate_at), "sample_at": sorted(sample_at)}
    (folder / REPLAY).write_text(json.dumps(places) + "\n")


def read_evaluate_at(folder: Path) -> frozenset[int] | None:
    """The iterations to evaluate after; None for a run, which evaluates as its configuration says."""
    return _read_iterations(folder, "evaluate_at")


def read_sample_at(folder: Path) -> frozenset[int] | None:
    """The iterations with training samples; None for a run, which writes them as its configuration says."""
    return _read_iterations(folder, "sample_at")


def _read_iterations(folder: Path, name: str) -> frozenset[int] | None:
    file = folder / REPLAY
    return frozenset(json.loads(file.read_text())[name]) if file.is_file() else None
