"""Reads the files of finished and running runs: state, configuration, metrics and samples. Does not import torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ippo_cli.config.critic_fitting import stored_primary_metric
from ippo_cli.runs.folder import is_run_locked
from ippo_cli.runs.metric_names import present_metric_name
from ippo_cli.runs.run_files import (
    RunFile,
    read_config_file,
    read_json_file,
    read_metric_row,
    read_object,
    read_state_file,
    read_text_lines,
)

SAMPLE_FILE = re.compile(r"(?P<mode>train|eval)_(?P<iteration>\d+)\.jsonl")
SKIPPED_FOLDERS = frozenset(
    {"checkpoints", "samples", "tb", "inputs", "evaluations", "profile", "mlruns", "trackio", "wandb"}
)
INTERRUPTED = "interrupted"  # `running` in run.json, but no process holds the folder


@dataclass(frozen=True, slots=True, order=True)
class SampleFile:
    """One file of sampled episodes: of training or of an evaluation after `iteration` iterations."""

    iteration: int
    mode: str  # train | eval
    path: Path

    def episodes(self) -> list[dict[str, Any]]:
        """The episodes, as documented in docs/episodes.md; a line that is cut off ends the list."""
        return list(_read_lines(self.path, read_object))


@dataclass(frozen=True)
class RunRecord:
    """A run's folder, read on demand and cached: make a new record to see what a running run has added."""

    folder: Path

    @cached_property
    def _state_file(self) -> RunFile:
        return read_state_file(self.folder)

    @property
    def state(self) -> Mapping[str, Any]:
        """The contents of `run.json`, without values of a wrong type. Raises `ResumeError`."""
        return self._state_file.value

    @cached_property
    def status(self) -> str:
        """`running`, `done`, `preempted` or `failed`; `interrupted` if it has no final state and no process."""
        state = self.state["state"]
        return INTERRUPTED if state == "running" and not is_run_locked(self.folder) else state

    @cached_property
    def _config_file(self) -> RunFile:
        return read_config_file(self.folder)

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration as plain values; empty if it cannot be read."""
        return self._config_file.value

    def config_group(self, name: str) -> Mapping[str, Any]:
        """The values of a group of the configuration, such as `task`; empty if it has none."""
        group = self.config.get(name)
        return group if isinstance(group, Mapping) else {}

    @cached_property
    def _environment_file(self) -> RunFile:
        return read_json_file(self.folder, "env.json", dict)

    @property
    def environment(self) -> Mapping[str, Any]:
        """Versions of Python and packages, platform and processes; empty if unknown."""
        return self._environment_file.value

    @cached_property
    def _command_file(self) -> RunFile:
        return read_text_lines(self.folder, "command.txt")

    @property
    def commands(self) -> Sequence[str]:
        """The command of the run, and those that resumed it, oldest first; empty if they cannot be read."""
        return self._command_file.value

    @cached_property
    def _override_file(self) -> RunFile:
        return read_json_file(self.folder, "overrides.json", list)

    @property
    def overrides(self) -> Sequence[str]:
        """The arguments of the last command; empty if unknown."""
        return [str(text) for text in self._override_file.value]

    @property
    def damaged_files(self) -> list[str]:
        """A phrase for each damaged value or file, such as `env.json cannot be read`. Raises `ResumeError`."""
        files = (
            self._state_file,
            self._config_file,
            self._environment_file,
            self._command_file,
            self._override_file,
        )
        return [text for file in files for text in file.problems]

    @property
    def agents(self) -> list[str]:
        """The names of the agents, in the order of the task."""
        agents = self.config_group("task").get("agents")
        return [str(name) for name in agents] if isinstance(agents, Mapping) else []

    @property
    def primary_metric(self) -> str:
        """The name of the held-out score below `eval/`, such as `sampled/score`."""
        return stored_primary_metric(self.config) or "sampled/score"

    @cached_property
    def metrics(self) -> list[dict[str, float]]:
        """The rows of `metrics.jsonl` under present names; null is NaN. A damaged line ends the list."""
        return [
            {present_metric_name(name): math.nan if value is None else value for name, value in row.items()}
            for row in _read_lines(self.folder / "metrics.jsonl", read_metric_row)
        ]

    @cached_property
    def damaged_line(self) -> int | None:
        """The number of the first complete line of `metrics.jsonl` that is no row: `metrics` ends before it."""
        file = self.folder / "metrics.jsonl"
        if not file.is_file():
            return None
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if read_metric_row(line) is None:
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


def _read_lines(path: Path, read: Callable[[bytes], dict[str, Any] | None]) -> Iterator[dict[str, Any]]:
    """The rows of a file that another process may be writing; ends at the first line that `read` cannot read."""
    if not path.is_file():
        return
    with path.open("rb") as lines:
        for line in lines:
            row = read(line)
            if row is None:
                return
            yield row
