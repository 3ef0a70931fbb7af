"""Selects runs by values of their configuration: `algorithm.advantage=gae`, `state=failed`, `name=sort*`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ippo_cli.catalog.entries import RunEntry
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.leaves import iter_leaves
from ippo_cli.config.text import closest_hint

STATE_KEY = "state"
STATES = ("running", "done", "preempted", "failed", "interrupted", "unreadable")


@dataclass(frozen=True, slots=True)
class Filter:
    """A key and the values that a run may have, separated by commas; `*` matches any text."""

    key: str
    patterns: tuple[str, ...]

    def accepts(self, values: Sequence[object]) -> bool:
        """Whether any of a run's values fits any pattern."""
        return any(_fits(pattern, value) for pattern in self.patterns for value in values)


def parse_filter(text: str) -> Filter:
    """Parse `key=value` or `key=value,value`. Raises `ConfigError`."""
    key, _, typed = text.partition("=")
    patterns = tuple(part.strip() for part in typed.split(","))
    if not key or not all(patterns):
        raise ConfigError(text, "is not a filter", "use key=value, such as state=failed or algorithm.advantage=gae")
    if key == STATE_KEY and (unknown := [part for part in patterns if "*" not in part and part not in STATES]):
        raise ConfigError(text, f"has the unknown state {unknown[0]}", f"use one of {' '.join(STATES)}")
    return Filter(key, patterns)


def select_runs(entries: Sequence[RunEntry], filters: Sequence[Filter], defaults: Mapping[str, str]) -> list[RunEntry]:
    """The runs that all filters accept. `defaults`: the default option by group, for `algorithm=ippo`.

    Raises `ConfigError` for a key that no run has.
    """
    for one in filters:
        if entries and not any(_find_values(entry, one.key, defaults) for entry in entries):
            known = [STATE_KEY, *dict.fromkeys(key for entry in entries for key, _ in iter_leaves(entry.record.config))]
            raise ConfigError(
                f"{one.key}={','.join(one.patterns)}",
                "is not a key of any of these runs" + closest_hint(one.key, known),
                "use a key of config.yaml",
            )
    return [entry for entry in entries if all(one.accepts(_find_values(entry, one.key, defaults)) for one in filters)]


def _find_values(entry: RunEntry, key: str, defaults: Mapping[str, str]) -> list[object]:
    """A run's values of a key: the state, a leaf, or the option of a group; empty if the run lacks the key."""
    if key == STATE_KEY:
        return [entry.state]
    node: Any = entry.record.config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return []
        node = node[part]
    if not isinstance(node, Mapping):
        return [node]
    typed = [text.partition("=")[2] for text in entry.record.overrides if text.startswith(f"{key}=")]
    option = typed[-1] if typed else defaults.get(key)
    return [value for value in (node.get("kind"), option) if value is not None]


def _fits(pattern: str, value: object) -> bool:
    if value is None or isinstance(value, bool):
        return pattern.lower() == ("null" if value is None else str(value).lower())
    if isinstance(value, int | float):
        try:
            return float(pattern) == float(value)
        except ValueError:
            return False
    return fnmatchcase(str(value), pattern)
