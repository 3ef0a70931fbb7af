"""Differences between what a run recorded and what its files contain or an execution gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

MAX_TEXT = 60  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where a run is not what it recorded."""

    file: str  # relative to the run's folder
    place: str  # line, key or tensor; empty for the whole file
    reason: str

    def __str__(self) -> str:
        return f"{self.file}{f', {self.place}' if self.place else ''}: {self.reason}"

    def to_json(self) -> dict[str, str]:
        """The difference for the certificate."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """Two JSON values that differ, and their path, such as `turns[0].score`."""

    path: str
    recorded: Any
    executed: Any

    @property
    def reason(self) -> str:
        return f"{shorten(self.recorded)} in the run, {shorten(self.executed)} when executed again"


def value_differences(recorded: Any, executed: Any, path: str = "") -> Iterator[ValueDifference]:
    """Yield the differing leaves of two JSON values; keys that only the execution has are no difference.

    A later version of this program may write more keys. `new_keys` names them.
    """
    if isinstance(recorded, Mapping) and isinstance(executed, Mapping):
        for key, value in recorded.items():
            yield from value_differences(value, executed.get(key, MISSING), f"{path}.{key}" if path else str(key))
    elif _are_lists(recorded, executed) and len(recorded) == len(executed):
        for place, (first, second) in enumerate(zip(recorded, executed, strict=True)):
            yield from value_differences(first, second, f"{path}[{place}]")
    elif type(recorded) is not type(executed) or recorded != executed:
        yield ValueDifference(path, recorded, executed)


def new_keys(recorded: Any, executed: Any) -> set[str]:
    """The names of keys that only the execution has, at any depth."""
    if isinstance(recorded, Mapping) and isinstance(executed, Mapping):
        found = {str(key) for key in executed if key not in recorded}
        return found.union(*(new_keys(recorded[key], executed[key]) for key in recorded if key in executed))
    if _are_lists(recorded, executed):
        return set().union(*(new_keys(first, second) for first, second in zip(recorded, executed, strict=False)))
    return set()


def shorten(value: Any) -> str:
    """A value in at most `MAX_TEXT` characters; texts of models are quoted and escaped."""
    text = value if value is MISSING else ascii(value)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 4]} ..."


def _are_lists(first: Any, second: Any) -> bool:
    return isinstance(first, Sequence) and isinstance(second, Sequence) and not isinstance(first, str)


class _Missing(str):
    """The value of a key that does not exist."""


MISSING = _Missing("missing")
