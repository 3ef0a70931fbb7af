"""One run as a line of a list: state, scores, age, size and command."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import ConfigError, ResumeError
from ippo_cli.runs.folder import display_path
from ippo_cli.runs.missing_parts import find_missing_parts
from ippo_cli.runs.records import RunRecord, find_runs

UNREADABLE = "unreadable"  # state of a folder with a run.json that cannot be read
FOLDER_TIME = re.compile(r"(\d{8}-\d{6})-[0-9a-f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """A run's folder, state and scores. Times are seconds since the epoch, sizes bytes."""

    record: RunRecord
    name: str
    state: str
    metric: str
    first: float | None  # held-out scores; None without an evaluation
    best: float | None
    last: float | None
    iterations: int | None
    started: float
    changed: float  # when the last file of its state was written
    agents: tuple[str, ...]
    size: int
    command: str
    error: str | None
    missing: tuple[str, ...] = ()  # incomplete files

    @property
    def folder(self) -> Path:
        return self.record.folder

    def to_json_data(self) -> dict[str, Any]:
        """The entry for `json.dumps`."""
        names = ("name", "state", "metric", "first", "best", "last", "iterations", "started", "changed", "size")
        data = {name: getattr(self, name) for name in names}
        return (
            {"folder": str(self.folder)}
            | data
            | {
                "agents": list(self.agents),
                "command": self.command,
                "error": self.error,
                "missing": list(self.missing),
            }
        )


def list_runs(folders: Sequence[Path]) -> list[RunEntry]:
    """Entries of all runs at or below the folders, newest first. Raises `ConfigError` for a missing folder."""
    found: dict[Path, RunRecord] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(display_path(folder), "is not a folder", "use a folder of runs, such as outputs")
        found |= {record.folder.resolve(): record for record in find_runs(folder)}
    entries = [describe_run(record) for record in found.values()]
    return sorted(entries, key=lambda entry: (-entry.started, str(entry.folder)))


def describe_run(record: RunRecord) -> RunEntry:
    """The entry of a run; a damaged run.json gives the state `unreadable`."""
    try:
        known, state = record.state, record.status
    except ResumeError:
        known, state = {}, UNREADABLE
    scores = {name: _read_score(known.get("evaluation"), name) for name in ("first", "best", "last")}
    iterations = known.get("iterations")
    commands = record.commands
    return RunEntry(
        record=record,
        name=str(record.config.get("name") or record.folder.parent.name),
        state=state,
        metric=record.primary_metric,
        first=scores["first"],
        best=scores["best"],
        last=scores["last"],
        iterations=iterations if isinstance(iterations, int) else None,
        started=start_time(record.folder),
        changed=change_time(record.folder),
        agents=tuple(map(str, record.agents)),
        size=folder_size(record.folder),
        command=commands[-1] if commands else "",
        error=known.get("error") if isinstance(known.get("error"), str) else None,
        missing=tuple(find_missing_parts(record)) if known else (),
    )


def _read_score(evaluation: Any, name: str) -> float | None:
    entry = evaluation.get(name) if isinstance(evaluation, dict) else None
    value = entry.get("score") if isinstance(entry, dict) else None
    return float(value) if isinstance(value, int | float) else None


def start_time(folder: Path) -> float:
    """The time in the folder's name; for another name the time of its first file."""
    if match := FOLDER_TIME.fullmatch(folder.name):
        with suppress(ValueError, OverflowError):
            return time.mktime(time.strptime(match[1], "%Y%m%d-%H%M%S"))
    return min(_file_times(folder, ("command.txt", "config.yaml", "run.json", "env.json")), default=0.0)


def change_time(folder: Path) -> float:
    """The time of the last change of the run's state, metrics or checkpoints."""
    return max(_file_times(folder, ("run.json", "metrics.jsonl", "command.txt", "checkpoints")), default=0.0)


def _file_times(folder: Path, names: Sequence[str]) -> Iterator[float]:
    for name in names:
        with suppress(OSError):
            yield (folder / name).lstat().st_mtime


def folder_size(folder: Path) -> int:
    """Bytes of the files below a folder. Links are not followed; a file with several names counts once."""
    total, seen = 0, set()
    for place, _, files in os.walk(folder, followlinks=False):
        for file in files:
            with suppress(OSError):  # removed in the meantime
                found = os.lstat(os.path.join(place, file))
                if stat.S_ISREG(found.st_mode) and (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    total += found.st_size
    return total
