"""Reads the small files of a run: each gives values of the expected types, and phrases for what is damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ippo_cli.config.errors import ResumeError

READ_ERRORS = (OSError, ValueError, RecursionError, yaml.YAMLError)  # ValueError: also of bytes that are not UTF-8
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast


class RunFile(NamedTuple):
    """The values of a file, empty where it is missing or damaged, and a phrase for each problem."""

    value: Any
    problems: tuple[str, ...] = ()


def read_state_file(folder: Path) -> RunFile:
    """The contents of `run.json`: values of another type than `RunState` writes are left out, and are problems.

    Raises `ResumeError` if the file has no object with a state.
    """
    try:
        known = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except READ_ERRORS as error:
        raise ResumeError(f"{folder} is not a run's folder: run.json cannot be read ({error})") from error
    if not isinstance(known, dict) or "state" not in known:
        raise ResumeError(f"{folder} is not a run's folder: run.json has no key state")
    damaged = [key for key, fits in _STATE_TYPES.items() if key in known and not fits(known[key])]
    values = {key: value for key, value in known.items() if key not in damaged}
    values |= {"state": str(known["state"])}
    return RunFile(values, tuple(f"run.json has no usable value of {key}" for key in damaged))


def read_config_file(folder: Path) -> RunFile:
    """The values of `config.yaml`; a missing or unreadable file is a problem."""
    try:
        known = yaml.load((folder / "config.yaml").read_text(encoding="utf-8"), _LOADER)
    except READ_ERRORS:
        known = None
    return RunFile(known) if isinstance(known, dict) and known else RunFile({}, ("config.yaml cannot be read",))


def read_json_file(folder: Path, name: str, expected: type[dict[str, Any]] | type[list[Any]]) -> RunFile:
    """The object or list of a JSON file; empty if it is missing, which is no problem."""
    try:
        known = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return RunFile(expected())
    except READ_ERRORS:
        known = None
    return RunFile(known) if isinstance(known, expected) else RunFile(expected(), (f"{name} cannot be read",))


def read_text_lines(folder: Path, name: str) -> RunFile:
    """The lines of a text file; empty if it is missing, which is no problem."""
    try:
        text = (folder / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return RunFile([])
    except READ_ERRORS:
        return RunFile([], (f"{name} cannot be read",))
    is_cut = not text.endswith("\n") or "\0" in text
    return RunFile(text.splitlines(), (f"{name} is empty or ends within a line",) if is_cut else ())


def read_metric_row(line: bytes) -> dict[str, float | None] | None:
    """A line of `metrics.jsonl`: an object of numbers with an iteration; None for any other line."""
    row = read_object(line)
    if row is None or not _is_iteration(row.get("iteration")):
        return None
    return row if all(value is None or is_number(value) for value in row.values()) else None


def read_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None if it is not one."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def is_number(value: object) -> bool:
    """Whether a JSON value is a number, NaN and infinity included; true, false and integers beyond 64 bits are not."""
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63)


def _is_iteration(value: object) -> bool:
    return is_number(value) and 0 <= value < 2**31 and value == int(value)  # type: ignore[operator, call-overload]


def _is_object_of(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, Mapping) and all(map(fits, value.values()))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number_or_null(value: object) -> bool:
    return value is None or is_number(value)


_STATE_TYPES: dict[str, Callable[[object], bool]] = {
    "wall_seconds": is_number,
    "iterations": _is_count,
    "evaluation": _is_object_of(_is_object_of(_is_number_or_null)),
    "error": lambda value: value is None or _is_text(value),
    "warnings": _is_object_of(_is_text),
    "warning_iterations": _is_object_of(_is_count),
}
