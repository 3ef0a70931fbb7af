"""Settings of other projects and their counterparts here, read from `peers.yaml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

import yaml

PEERS_FILE = Path(__file__).with_name("peers.yaml")
EARLIER_VERSION = "an earlier version"
ADVANTAGE_ARGS = "algorithm.advantage_args."
LONGEST = 3
"""Maximum number of dotted parts of a name in the table."""


class SuggestionKind(str, Enum):
    use = "use"  # a key of this project
    how = "how"  # another way to do the same
    absent = "not"  # reason why there is no counterpart
    unlisted = "unlisted"  # the key has a root of the project but is not in the table


@dataclass(frozen=True)
class Suggestion:
    """Suggestion for a key of another project."""

    project: str
    kind: SuggestionKind
    text: str

    @property
    def rule(self) -> str:
        if self.project == EARLIER_VERSION and self.kind is SuggestionKind.absent:
            return "was removed"
        if self.kind is SuggestionKind.unlisted:
            return f"is not a key here ({self.project} has such keys)"
        missing = "has no counterpart here" if self.kind is SuggestionKind.absent else "is not a key here"
        return f"{missing} ({self.project} has it)"

    @property
    def remedy(self) -> str:
        return f"use {self.text}" if self.kind is SuggestionKind.use else self.text


@dataclass(frozen=True)
class Project:
    """The entries of one project."""

    roots: tuple[str, ...]  # first parts of keys that occur in this project only
    runs: tuple[tuple[str, str], ...]  # a typical run of the project, and the equivalent command here
    keys: Mapping[str, Suggestion]


@cache
def read_projects() -> dict[str, Project]:
    """The table by name of the project."""
    plain = yaml.safe_load(PEERS_FILE.read_text())
    return {
        name: Project(
            roots=tuple(part["roots"]),
            runs=tuple((run["was"], run["type"]) for run in part["runs"]),
            keys={key: _parse_suggestion(name, answer) for key, answer in part["keys"].items()},
        )
        for name, part in plain["projects"].items()
    }


@cache
def read_earlier_names() -> dict[str, Suggestion]:
    """Suggestions for former names of keys of this project, and for removed keys (`SuggestionKind.absent`)."""
    names = yaml.safe_load(PEERS_FILE.read_text())["earlier"]
    for own in read_advantage_keys().values():
        names |= {f"algorithm.{old}": f"{ADVANTAGE_ARGS}{new}" for old, new in own.items()}
    return {key: _parse_suggestion(EARLIER_VERSION, text) for key, text in names.items()}


@cache
def read_advantage_keys() -> dict[str, dict[str, str]]:
    """Former keys below `algorithm` that are keys of `algorithm.advantage_args` now, by estimator."""
    return yaml.safe_load(PEERS_FILE.read_text())["earlier_args"]


@cache
def read_option_names() -> dict[str, dict[str, Suggestion]]:
    """Suggestions for options of other projects, by group and name."""
    groups = yaml.safe_load(PEERS_FILE.read_text())["options"]
    return {
        group: {name: _parse_suggestion(group, answer) for name, answer in entries.items()}
        for group, entries in groups.items()
    }


def find_suggestion(key: str, value: str = "") -> Suggestion | None:
    """Return the suggestion for `key`; None for a key of no project. Of several, one that names `value` comes first."""
    parts = key.lower().split(".")
    tables = [read_earlier_names(), *(project.keys for project in read_projects().values())]
    for length in range(min(LONGEST, len(parts)), 0, -1):  # longer names are more specific
        name = ".".join(parts[-length:])
        found = [
            table[name] for table in sorted(tables, key=lambda one: _root_sort_key(one, parts[0])) if name in table
        ]
        if found:
            return next((one for one in found if value and value in re.findall(r"\w+", one.text)), found[0])
    for name, project in read_projects().items():
        if len(parts) > 1 and parts[0] in project.roots:
            return Suggestion(name, SuggestionKind.unlisted, "docs/migrating.md lists those with a counterpart here")
    return None


def _root_sort_key(table: Mapping[str, Suggestion], root: str) -> bool:
    """Sort key that puts projects with this root first."""
    project = next(iter(table.values())).project
    return not (project in read_projects() and root in read_projects()[project].roots)


def _parse_suggestion(project: str, entry: str | Mapping[str, str]) -> Suggestion:
    if isinstance(entry, str):
        return Suggestion(project, SuggestionKind.use, entry)
    ((kind, text),) = entry.items()
    return Suggestion(project, SuggestionKind(kind), text)
