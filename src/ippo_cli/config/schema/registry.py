"""Registry of options: the schema class of every kind of a group, and where its implementation is."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

C = TypeVar("C", bound=type[Any])
SINGLE = ""  # the kind of a group that has a single schema

OPTIONS: dict[str, dict[str, type[Any]]] = {}
"""Schema class by group and kind."""
SCHEMAS: dict[str, type[Any]] = {}
"""Schema class by name; files of users may still list it in `defaults` (`/schema/NAME@_here_`), without effect."""
IMPLEMENTATIONS: dict[tuple[str, str, str], str] = {}
"""`module:name` by group, kind and role; imported when it is used, because it may need torch."""


def option(group: str, kind: str = SINGLE, *, schema: str | None = None, **implementations: str) -> Callable[[C], C]:
    """Register a schema class as `kind` of `group`, such as `@option("reward", "gsm8k", build="module:function")`.

    `schema`: its name in defaults lists of earlier versions, by default `group_kind`.
    `implementations`: `module:name` by role.
    """

    def register(cls: C) -> C:
        OPTIONS.setdefault(group, {})[kind] = cls
        SCHEMAS[schema or (f"{group}_{kind}" if kind else group)] = cls
        IMPLEMENTATIONS.update({(group, kind, role): place for role, place in implementations.items()})
        return cls

    return register


def load_implementation(group: str, kind: str, role: str) -> Any:
    """Import what implements a kind of a group in this role."""
    module, _, name = IMPLEMENTATIONS[group, kind, role].partition(":")
    return getattr(import_module(module), name)


def find_implementation(group: str, kind: str, role: str) -> Any:
    """The same, or None for a kind without this role."""
    return load_implementation(group, kind, role) if (group, kind, role) in IMPLEMENTATIONS else None
