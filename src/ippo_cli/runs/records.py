"""Reads the files of finished and running runs: state, configuration, metrics and samples. Does not import torch."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from ippo_cli.config.critic_fitting import stored_primary_metric
from ippo_cli.config.errors import ResumeError
from ippo_cli.runs.folder import is_run_locked
from ippo_cli.runs.metric_names import present_metric_name

SAMPLE_FILE = re.compile(r"(?P<mode>train|eval)_(?P<iteration>\d+)\.jsonl")
SKIPPED_FOLDERS = frozenset(
    {"checkpoints", "samples", "tb", "inputs", "evaluations", "profile", "mlruns", "trackio", "wandb"}
)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast
INTERRUPTED = "interrupted"  # `running` in run.json, but no process holds the folder


@dataclass(frozen=True, slots=True, order=True)
class SampleFile:
    """One file of sampled episodes: of training or of an evaluation after `iteration` iterations."""

    iteration: int
    mode: str  # train | eval
    path: Path

    def episodes(self) -> list[dict[str, Any]]:
        """The episodes, as documented in docs/episodes.md; a line that is cut off ends the list."""
        return list(_read_json_lines(self.path))


@dataclass(frozen=True)
class RunRecord:
    """A run's folder, read on demand and cached: make a new record to see what a running run has added."""

    folder: Path

    @cached_property
    def state(self) -> Mapping[str, Any]:
        """The contents of `run.json`. Raises `ResumeError`."""
        try:
            known = json.loads((self.folder / "run.json").read_text())
        except (OSError, ValueError) as error:
            raise ResumeError(f"{self.folder} is not a run's folder: run.json cannot be read ({error})") from error
        if not isinstance(known, dict) or "state" not in known:
            raise ResumeError(f"{self.folder} is not a run's folder: run.json has no key state")
        return known | {"state": str(known["state"])}

    @cached_property
    def status(self) -> str:
        """`running`, `done`, `preempted` or `failed`; `interrupted` if it has no final state and no process."""
        state = self.state["state"]
        return INTERRUPTED if state == "running" and not is_run_locked(self.folder) else state

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration as plain values; empty if it cannot be read."""
        try:
            known = yaml.load((self.folder / "config.yaml").read_text(), _LOADER)
        except (OSError, yaml.YAMLError):
            return {}
        return known if isinstance(known, dict) else {}

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """Versions of Python and packages, platform and processes; empty if unknown."""
        try:
            return json.loads((self.folder / "env.json").read_text())
        except (OSError, ValueError):
            return {}

    @cached_property
    def commands(self) -> Sequence[str]:
        """The command of the run, and those that resumed it, oldest first."""
        try:
            return (self.folder / "command.txt").read_text().splitlines()
        except OSError:
            return []

    @cached_property
    def overrides(self) -> Sequence[str]:
        """The arguments of the last command; empty if unknown."""
        try:
            return [str(text) for text in json.loads((self.folder / "overrides.json").read_text())]
        except (OSError, ValueError, TypeError):
            return []

    @property
    def agents(self) -> list[str]:
        """The names of the agents, in the order of the task."""
        return list((self.config.get("task") or {}).get("agents") or {})

    @property
    def primary_metric(self) -> str:
        """The name of the held-out score below `eval/`, such as `sampled/score`."""
        return stored_primary_metric(self.config) or "sampled/score"

    @cached_property
    def metrics(self) -> list[dict[str, float]]:
        """The rows of `metrics.jsonl` under present names; null is NaN. A line that is cut off ends the list."""
        return [
            {present_metric_name(name): math.nan if value is None else value for name, value in row.items()}
            for row in _read_json_lines(self.folder / "metrics.jsonl")
            if isinstance(row.get("iteration"), (int, float))
        ]

    @cached_property
    def damaged_line(self) -> int | None:
        """The number of the first complete line of `metrics.jsonl` that is no object: `metrics` ends before it."""
        file = self.folder / "metrics.jsonl"
        if not file.is_file():
            return None
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if _parse_object(line) is None:
                    return number if line.endswith(b"\n") else None  # another process may be writing the last line
        return None

    @cached_property
    def sample_files(self) -> list[SampleFile]:
        """Files of sampled episodes, by iteration; an evaluation follows the training samples of its iteration."""
        found = [(path, SAMPLE_FILE.fullmatch(path.name)) for path in (self.folder / "samples").glob("*.jsonl")]
        files = [SampleFile(int(match["iteration"]), match["mode"], path) for path, match in found if match]
        return sorted(files, key=lambda file: (file.iteration, file.mode == "eval"))


def find_runs(path: Path) -> list[RunRecord]:
    """The run at `path`, or all runs below it, oldest first; folders with files of a run are not searched."""
    if (path / "run.json").is_file():
        return [RunRecord(path)]
    found = [RunRecord(folder) for folder in _search_runs(path)]
    return sorted(found, key=lambda run: (run.folder.name, run.folder))


def _search_runs(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not path.is_dir() or path.is_symlink() or path.name in SKIPPED_FOLDERS or path.name.startswith("."):
            continue
        if (path / "run.json").is_file():
            yield path
        else:
            yield from _search_runs(path)


def _read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file that another process may be writing; ends at the first line that is not an object."""
    if not path.is_file():
        return
    with path.open("rb") as lines:
        for line in lines:
            row = _parse_object(line)
            if row is None:
                return
            yield row


def _parse_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None if it is not one."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
