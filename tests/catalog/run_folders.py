"""Writes folders of runs: their configuration, state, metrics and checkpoints."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

DAY_S = 86400


def write_run(
    root: Path,
    name: str,
    *,
    state: str = "done",
    scores: Mapping[str, float] | None = None,
    checkpoints: tuple[int, ...] = (),
    age_days: float = 0.0,
    error: str | None = None,
    **config: Any,
) -> Path:
    """Write a run below `root/NAME`; the keywords are top-level keys of its configuration."""
    started = time.time() - age_days * DAY_S
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
    folder = root / name / f"{stamp}-{len(list(root.rglob('run.json'))):06x}"
    folder.mkdir(parents=True)
    evaluation = {which: {"iteration": 0, "score": score} for which, score in (scores or {}).items()}
    known = {"state": state, "iterations": 4, "wall_seconds": 90.0, "evaluation": evaluation, "error": error}
    plain = {"name": name, "seed": 0, "algorithm": {"advantage": "gae", "gamma": 1.0}} | config
    plain.setdefault("task", {"kind": "sorting", "primary_metric": "sampled/score", "agents": {"low": {}, "high": {}}})
    (folder / "run.json").write_text(json.dumps(known))
    (folder / "config.yaml").write_text(yaml.safe_dump(plain))
    (folder / "command.txt").write_text(f"ippo-train seed={plain['seed']}\n")
    (folder / "overrides.json").write_text(json.dumps([f"seed={plain['seed']}"]))
    rows = [{"iteration": n, "low/score/mean": 0.1 * n, "time/iteration": 1.0} for n in range(1, 5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for iteration in checkpoints:
        place = folder / "checkpoints" / f"step_{iteration:08d}"
        place.mkdir(parents=True)
        (place / "manifest.json").write_text("{}")
        (place / "weights").write_bytes(b"x" * 1000)
    set_age(folder, age_days)
    return folder


def set_age(folder: Path, days: float) -> None:
    """Set the times of all files below a folder."""
    when = time.time() - days * DAY_S
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (when, when))
