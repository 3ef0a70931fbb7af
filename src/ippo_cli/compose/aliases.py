"""Settings of other projects, and what to type here instead: a reader of `peers.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

import yaml

PEERS_FILE = Path(__file__).with_name("peers.yaml")
EARLIER_VERSION = "an earlier version"
LONGEST = 3
"""Parts of the longest name in the table."""


class SuggestionKind(str, Enum):
    use = "use"  # a key of ours
    how = "how"  # how the same is done here
    absent = "not"  # why there is nothing like it
    unlisted = "unlisted"  # a key below a root of the project's, which the table does not have


@dataclass(frozen=True)
class Suggestion:
    """What somebody who types another project's key is answered."""

    project: str
    kind: SuggestionKind
    text: str

    @property
    def rule(self) -> str:
        if self.kind is SuggestionKind.unlisted:
            return f"is no key here ({self.project} has such keys)"
        missing = "has no counterpart here" if self.kind is SuggestionKind.absent else "is no key here"
        return f"{missing} ({self.project} has it)"

    @property
    def remedy(self) -> str:
        return f"use {self.text}" if self.kind is SuggestionKind.use else self.text


@dataclass(frozen=True)
class Project:
    """One project's part of the table."""

    roots: tuple[str, ...]  # first parts of keys that only this project has
    runs: tuple[tuple[str, str], ...]  # what a typical run was, and the command here
    keys: Mapping[str, Suggestion]


@cache
def read_projects() -> dict[str, Project]:
    """The table, by the project's name."""
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
    """Names that keys of this project had before."""
    return {
        key: _parse_suggestion(EARLIER_VERSION, text)
        for key, text in yaml.safe_load(PEERS_FILE.read_text())["earlier"].items()
    }


def find_suggestion(key: str) -> Suggestion | None:
    """What to type instead of `key`; `None` for a key that no project has."""
    parts = key.lower().split(".")
    tables = [read_earlier_names(), *(project.keys for project in read_projects().values())]
    for length in range(min(LONGEST, len(parts)), 0, -1):  # the longer name is the more certain one
        name = ".".join(parts[-length:])
        for table in sorted(tables, key=lambda table: _root_sort_key(table, parts[0])):
            if name in table:
                return table[name]
    for name, project in read_projects().items():
        if len(parts) > 1 and parts[0] in project.roots:
            return Suggestion(name, SuggestionKind.unlisted, "docs/migrating.md lists those with a counterpart here")
    return None


def _root_sort_key(table: Mapping[str, Suggestion], root: str) -> bool:
    """Sorts the project first of which a key's first part is."""
    project = next(iter(table.values())).project
    return not (project in read_projects() and root in read_projects()[project].roots)


def _parse_suggestion(project: str, entry: str | Mapping[str, str]) -> Suggestion:
    if isinstance(entry, str):
        return Suggestion(project, SuggestionKind.use, entry)
    ((kind, text),) = entry.items()
    return Suggestion(project, SuggestionKind(kind), text)
