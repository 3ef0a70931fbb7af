"""The runs of a comparison: states, final scores, generated tokens, and cross-play of two seeds of the team."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from ippo_cli.config.commands import shell_command
from ippo_cli.config.errors import PreflightError, ResumeError
from ippo_cli.runs.folder import metric_rows, write_atomically
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
    evaluated: tuple[float, ...]  # first, best and last held-out score so far
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
        evaluated = _read_evaluated(known)
        found[name, int(seed)] = ControlRun(
            name=name,
            seed=int(seed),
            folder=place,
            is_finished=done or row.state in FINISHED,
            score=float(last) if done and isinstance(last, int | float) else None,
            evaluated=evaluated,
            tokens=_count_tokens(place, int(known.get("iterations", 0))) if place.is_dir() else 0,
            iterations=int(known.get("iterations", 0)),
            error=None if done else row.error,
        )
    return found


def read_evaluated(folder: Path, rows: Iterable[JobRow]) -> dict[str, tuple[float, ...]]:
    """By the folder of a run, its first, best and last held-out score so far."""
    return {row.folder: _read_evaluated(read_run(folder / row.folder)) for row in rows}


def _read_evaluated(known: Mapping[str, Any]) -> tuple[float, ...]:
    scores = (entry.get("score") for entry in known.get("evaluation", {}).values())
    return tuple(float(score) for score in scores if isinstance(score, int | float) and math.isfinite(score))


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


CROSS_PLAY_FOLDER = "cross_play"


@dataclass(frozen=True)
class CrossPlayScores:
    """Held-out scores of agents that were trained together, and of agents of two runs."""

    self_play: float
    cross_play: float


def read_cross_play(folder: Path, seeds: tuple[int, int]) -> CrossPlayScores | None:
    """The recorded scores of the runs of two seeds; None if they have not been evaluated."""
    file = _record(folder, seeds)
    return CrossPlayScores(**json.loads(file.read_text())) if file.is_file() else None


def evaluate_cross_play(folder: Path, seeds: tuple[int, int], runs: tuple[Path, Path]) -> None:
    """Score all teams of agents of two runs, and record the means over agents. Raises `PreflightError`."""
    keys = (f"run=[{runs[0]},{runs[1]}]", "crossplay=true")
    tables = run_evaluation(runs[0], keys, "crossplay-*/crossplay.json")["tables"]
    found = {key: fmean(table[key] for table in tables) for key in ("self_play", "cross_play")}
    file = _record(folder, seeds)
    file.parent.mkdir(exist_ok=True)
    write_atomically(file, json.dumps(found) + "\n")


def run_evaluation(run: Path, keys: Sequence[str], pattern: str) -> Mapping[str, Any]:
    """Run ippo-eval with these keys, and return the content of the file of results that it writes into a run's folder.

    `pattern`: of the file in `evaluations/`. Raises `PreflightError`.
    """

    def find_results() -> list[Path]:
        return sorted((run / "evaluations").glob(pattern))

    known = {file: file.stat().st_mtime_ns for file in find_results()}
    done = subprocess.run(
        [sys.executable, "-m", "ippo_cli.cli.evaluate", *keys, "tracker.console=plain"],
        check=False,
        capture_output=True,
        text=True,
    )
    written = [file for file in find_results() if known.get(file) != file.stat().st_mtime_ns]
    if done.returncode != 0 or not written:
        message = " ".join((done.stderr or done.stdout).split())[-500:]
        raise PreflightError(f"{keys[-1]} fails: {message}; try it alone: {shell_command('ippo-eval', *keys)}")
    return json.loads(written[0].read_text())


def _record(folder: Path, seeds: tuple[int, int]) -> Path:
    return folder / CROSS_PLAY_FOLDER / f"{seeds[0]}-{seeds[1]}.json"
