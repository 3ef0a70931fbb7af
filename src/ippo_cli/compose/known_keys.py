"""Names of all keys, of every option, from the schemas: finds unknown keys without composing a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from ippo_cli.compose.arguments import is_override
from ippo_cli.compose.load import KINDS, PER_AGENT, SINGLE_SCHEMAS
from ippo_cli.compose.path_keys import AGENTS_KEY
from ippo_cli.compose.searchpath import SEARCH_PATH
from ippo_cli.config import schema
from ippo_cli.config.errors import UnknownKey
from ippo_cli.config.marked_keys import is_mapping_key

OTHER_ROOTS = (AGENTS_KEY, "hydra", "sweep", "experiment", "resume")  # what they have depends on more than schemas


def check_known_keys(overrides: Sequence[str]) -> None:
    """Raise `UnknownKey` for the first unknown key."""
    for text in unknown_overrides(overrides):
        raise UnknownKey(text)


def unknown_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides with keys that certainly do not exist; none with files of the user, which may define options."""
    if any(text.startswith(SEARCH_PATH) for text in overrides):
        return []
    return [text for text in overrides if is_override(text) and not _may_exist(text)]


@cache
def known_names() -> dict[str, None]:
    """All keys, groups and mappings between them, in the order of the schemas; agents' keys without a name."""
    names = dict.fromkeys(_field_names(schema.RunConfig, ""))
    for group, cls in SINGLE_SCHEMAS.items():
        names |= dict.fromkeys([group, *_field_names(cls, f"{group}.")])
    for group, kinds in KINDS.items():
        names |= dict.fromkeys([group, *(name for cls in kinds.values() for name in _field_names(cls, f"{group}."))])
    return names


@cache
def agent_names() -> tuple[str, ...]:
    """All keys of an agent, of every kind of its actor and critic."""
    return tuple(name for name in _field_names(schema.AgentConfig, "") if name not in PER_AGENT)


def _may_exist(text: str) -> bool:
    name, equals, _ = text.partition("=")
    if not equals or text.startswith(("+", "~", "=")) or name.startswith(OTHER_ROOTS):
        return True
    return name in known_names() or is_mapping_key(name)


def _field_names(cls: type[Any], prefix: str) -> Iterator[str]:
    for name, hint in get_type_hints(cls).items():
        yield f"{prefix}{name}"
        for part in (hint, *get_args(hint)):
            if isinstance(part, type) and is_dataclass(part):
                yield from _field_names(part, f"{prefix}{name}.")
