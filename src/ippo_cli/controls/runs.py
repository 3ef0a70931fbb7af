"""The runs of a comparison: their states, final scores and generated tokens, from the folder of the sweep."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ippo_cli.config.errors import ResumeError
from ippo_cli.runs.folder import metric_rows
from ippo_cli.sweeps.folder import JobRow, is_done, read_run
from ippo_cli.sweeps.search import FINISHED

TOKEN_RATE = "perf/tokens_per_second"


@dataclass(frozen=True, kw_only=True)
class ControlRun:
    """One training of the team or of an arm."""

    name: str  # the team or the arm
    seed: int
    folder: Path
    is_finished: bool  # done, or failed
    score: float | None  # last held-out score; None unless it is done
    tokens: int  # generated in training so far, by all agents
    iterations: int
    error: str | None


Runs = dict[tuple[str, int], ControlRun]


def run_folder_name(name: str, seed: int) -> str:
    """The folder of a run in the folder of the comparison."""
    return f"{name}-{seed}"


def read_runs(folder: Path, rows: Iterable[JobRow]) -> Runs:
    """The runs of all rows by name and seed."""
    found: Runs = {}
    for row in rows:
        name, _, seed = row.folder.rpartition("-")
        place = folder / row.folder
        known, done = read_run(place), is_done(place)
        last = known.get("evaluation", {}).get("last", {}).get("score")
        found[name, int(seed)] = ControlRun(
            name=name,
            seed=int(seed),
            folder=place,
            is_finished=done or row.state in FINISHED,
            score=float(last) if done and isinstance(last, int | float) else None,
            tokens=_count_tokens(place, int(known.get("iterations", 0))) if place.is_dir() else 0,
            iterations=int(known.get("iterations", 0)),
            error=None if done else row.error,
        )
    return found


@cache  # of a finished iteration, which does not change
def _count_tokens(folder: Path, iterations: int) -> int:
    """Tokens of all agents up to an iteration: their rate times the seconds that it is about."""
    if not (folder / "metrics.jsonl").is_file():
        return 0
    tokens = 0
    with suppress(ResumeError):  # the last row may be incomplete
        for row, _ in metric_rows(folder / "metrics.jsonl"):
            if TOKEN_RATE in row and row["iteration"] <= iterations:
                tokens += round(row[TOKEN_RATE] * row.get("time/ahead", row["time/rollout"]))
    return tokens
