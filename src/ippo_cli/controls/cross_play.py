"""Cross-play of the team's runs of two seeds, by `ippo-eval crossplay=true` in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ippo_cli.config.commands import shell_command
from ippo_cli.config.errors import PreflightError
from ippo_cli.runs.folder import write_atomically

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
    keys = (f"run=[{runs[0]},{runs[1]}]", "crossplay=true", "tracker.console=plain")
    known = {file: file.stat().st_mtime_ns for file in _results(runs[0])}
    done = subprocess.run(
        [sys.executable, "-m", "ippo_cli.cli.evaluate", *keys], check=False, capture_output=True, text=True
    )
    written = [file for file in _results(runs[0]) if known.get(file) != file.stat().st_mtime_ns]
    if done.returncode != 0 or not written:
        message = " ".join((done.stderr or done.stdout).split())[-500:]
        raise PreflightError(f"cross-play fails: {message}; try it alone: {shell_command('ippo-eval', *keys[:2])}")
    tables = json.loads(written[0].read_text())["tables"]
    found = {key: fmean(table[key] for table in tables) for key in ("self_play", "cross_play")}
    file = _record(folder, seeds)
    file.parent.mkdir(exist_ok=True)
    write_atomically(file, json.dumps(found) + "\n")


def _results(run: Path) -> list[Path]:
    return sorted((run / "evaluations").glob("crossplay-*/crossplay.json"))


def _record(folder: Path, seeds: tuple[int, int]) -> Path:
    return folder / CROSS_PLAY_FOLDER / f"{seeds[0]}-{seeds[1]}.json"
