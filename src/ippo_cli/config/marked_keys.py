"""All keys of the schema with their marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from ippo_cli.config.marks import Mark, find_marks, remove_marks
from ippo_cli.config.schema import OPTIONS, Config, RunConfig

AGENTS = "agents"


@dataclass(frozen=True, slots=True)
class SchemaKey:
    """A key of the configuration; `*` is an agent's name."""

    name: str  # `task.agents.*.rollout.temperature`
    marks: frozenset[Mark]
    is_mapping: bool  # its subkeys are the user's

    @property
    def is_of_agent(self) -> bool:
        return self.name.startswith("task.agents.*.")


def schema_keys() -> tuple[SchemaKey, ...]:
    """Keys of all kinds of all groups, then of a run, then of agents; each once, with the marks of any kind."""
    return _keys_of_groups(tuple((group, cls) for group, kinds in OPTIONS.items() for cls in kinds.values()))


@cache
def _keys_of_groups(options: tuple[tuple[str, type[Any]], ...]) -> tuple[SchemaKey, ...]:
    hints, own = get_type_hints(Config, include_extras=True), {leaf.name for leaf in fields(RunConfig)}
    found: dict[str, SchemaKey] = {}
    for group in (name for name in hints if name not in own):
        for cls in dict.fromkeys(cls for name, cls in options if name == group):
            for key in _iter_keys(cls, f"{group}.", find_marks(hints[group])):
                known = found.get(key.name, key)
                found[key.name] = SchemaKey(key.name, known.marks | key.marks, key.is_mapping)
    found |= {key.name: key for key in _iter_keys(RunConfig, "", frozenset())}
    return tuple(sorted(found.values(), key=lambda key: key.is_of_agent))


def _iter_keys(cls: type[Any], prefix: str, inherited: frozenset[Mark]) -> Iterator[SchemaKey]:
    for name, annotated in get_type_hints(cls, include_extras=True).items():
        hint, marks = remove_marks(annotated), inherited | find_marks(annotated)
        below = get_args(hint)[1] if name == AGENTS else hint
        if is_dataclass(below):
            place = f"{prefix}{name}.*." if name == AGENTS else f"{prefix}{name}."
            yield from _iter_keys(below, place, marks)  # type: ignore[arg-type]
        else:
            is_mapping = any(get_origin(part) is dict for part in (hint, *get_args(hint)))
            yield SchemaKey(f"{prefix}{name}", marks, is_mapping)


def wildcard_key(key: str) -> str:
    """Replace an agent's name by `*`, and cut the user's subkeys of a mapping."""
    key = re.sub(r"^task\.agents\.\w+\.", "task.agents.*.", key)
    mapping = next((known for known in schema_keys() if known.is_mapping and key.startswith(f"{known.name}.")), None)
    return mapping.name if mapping else key


def is_mapping_key(key: str) -> bool:
    """Whether a key is a mapping with the user's subkeys, or such a subkey."""
    wanted = wildcard_key(key)
    return any(known.is_mapping and known.name == wanted for known in schema_keys())


def is_frozen_key(key: str) -> bool:
    """Whether a key must keep its value when a run is resumed."""
    wanted = wildcard_key(key)
    marks = next((known.marks for known in schema_keys() if known.name == wanted), frozenset())
    return Mark.frozen in marks and Mark.changeable not in marks
