"""`replay.json` in a copy of a run that is executed again: the iterations after which the original was evaluated.

The last iteration of an interrupted or extended run was evaluated although `evaluation.every` does not say so.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

REPLAY = "replay.json"


def write_replay(folder: Path, evaluate_at: Collection[int]) -> None:
    """Write the file."""
    (folder / REPLAY).write_text(json.dumps({"evaluate_at": sorted(evaluate_at)}) + "\n")


def read_evaluate_at(folder: Path) -> frozenset[int] | None:
    """The iterations to evaluate after; None for a run, which evaluates as its configuration says."""
    file = folder / REPLAY
    return frozenset(json.loads(file.read_text())["evaluate_at"]) if file.is_file() else None
