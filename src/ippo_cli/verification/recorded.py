"""What a run recorded: lines of metrics and samples with their places, and its history. Strict, unlike `RunRecord`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ippo_cli.runs.checkpoint_files import FileManifest, read_method_states
from ippo_cli.runs.folder import MANIFEST, list_checkpoints
from ippo_cli.runs.history import HISTORY, HistoryLine, read_history
from ippo_cli.runs.records import RunRecord
from ippo_cli.verification.differences import Difference

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class JsonLine:
    """One line of a JSON Lines file."""

    number: int  # from 1
    text: str  # as in the file, with its newline
    value: Mapping[str, Any]


@dataclass(frozen=True)
class JsonFile:
    """The readable lines of a file, and its faults."""

    lines: Sequence[JsonLine] = ()
    faults: Sequence[Difference] = ()


def read_json_file(folder: Path, name: str) -> JsonFile:
    """Read `folder/name`; a line that is not an object is a fault."""
    lines: list[JsonLine] = []
    faults: list[Difference] = []
    try:
        data = (folder / name).read_bytes()
    except OSError as error:
        return JsonFile(faults=[Difference(name, "", f"cannot be read ({error.strerror})")])
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        try:
            value = json.loads(line)
            text = line.decode()
        except ValueError:
            value, text = None, ""
        if not isinstance(value, dict) or not line.endswith(b"\n"):
            faults.append(Difference(name, f"line {number}", "is not a complete JSON object"))
        else:
            lines.append(JsonLine(number, text, value))
    return JsonFile(lines, faults)


@dataclass(frozen=True)
class RecordedRun:
    """A run's folder with what verification reads of it."""

    folder: Path
    record: RunRecord = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "record", RunRecord(self.folder))

    @cached_property
    def checkpoints(self) -> dict[int, Path]:
        """The kept checkpoints by iteration, oldest first."""
        return {checkpoint_iteration(path): path for path in list_checkpoints(self.folder / "checkpoints")}

    @cached_property
    def metrics(self) -> JsonFile:
        """The lines of `metrics.jsonl`."""
        return read_json_file(self.folder, METRICS_FILE)

    @cached_property
    def rows(self) -> dict[int, JsonLine]:
        """The lines of `metrics.jsonl` by iteration."""
        return {
            int(line.value["iteration"]): line
            for line in self.metrics.lines
            if isinstance(line.value.get("iteration"), (int, float))
        }

    @cached_property
    def history(self) -> list[HistoryLine]:
        """The lines of `history.jsonl`; empty if it is missing or unreadable, which `history_fault` reports."""
        return [] if self.history_fault is not None else read_history(self.folder)

    @cached_property
    def history_fault(self) -> Difference | None:
        """Why `history.jsonl` cannot be read."""
        try:
            read_history(self.folder)
        except (OSError, ValueError) as error:
            return Difference(HISTORY, "", str(error))
        return None

    @property
    def starts(self) -> list[HistoryLine]:
        """The starts in the history."""
        return [line for line in self.history if line.is_start]

    @property
    def last_iteration(self) -> int:
        """The last iteration with a row or a checkpoint."""
        return max([*self.rows, *self.checkpoints], default=0)


def checkpoint_iteration(checkpoint: Path) -> int:
    """The number of iterations of a checkpoint."""
    return int(checkpoint.name.removeprefix("step_"))


def read_manifest(checkpoint: Path) -> FileManifest:
    """The files of a checkpoint; empty if it cannot be read, which its own check reports."""
    try:
        return dict(json.loads((checkpoint / MANIFEST).read_text())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The `state.json` of a checkpoint with the states of methods; empty if they cannot be read, which their own
    check reports.
    """
    try:
        state = json.loads((checkpoint / "state.json").read_text())
        return {**state, "methods": read_method_states(checkpoint)} if isinstance(state, dict) else {}
    except (OSError, ValueError):
        return {}
