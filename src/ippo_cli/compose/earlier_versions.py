"""Migration of configurations saved by earlier versions."""

from __future__ import annotations

import copy
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, get_type_hints

from ippo_cli.compose.load import KEYS_PER_AGENT, KINDS, PER_AGENT, SINGLE_SCHEMAS
from ippo_cli.config import schema


def fill_missing_keys(plain: dict[str, Any], today: dict[str, Any]) -> dict[str, Any]:
    """Return a saved configuration with missing keys filled from `today`.

    `today` is the composition of the same overrides by this version: it has the defaults of newer keys.
    """
    whole = copy.deepcopy(plain)
    if not isinstance(whole.get("task"), dict):
        return whole
    for group in (*KINDS, *SINGLE_SCHEMAS):
        value = whole.setdefault(group, copy.deepcopy(today[group]))
        _fill_group(group, value, today[group])
    for name, agent in whole["task"].get("agents", {}).items():
        now = today["task"]["agents"].get(name, {})
        _fill_dataclass(schema.AgentPromptConfig, agent, _agent_defaults() | now)
        for group in PER_AGENT:
            values = today[group] | now.get(group, {})  # an agent that the composition does not have gets the group's
            value = agent.setdefault(group, copy.deepcopy(values))
            _fill_group(group, value, values, KEYS_PER_AGENT.get(group))
    for name, part in (whole["reward"].get("parts") or {}).items():
        _fill_group("reward", part, (today["reward"].get("parts") or {}).get(name, {}))
    _fill_dataclass(schema.RunConfig, whole, today)
    return whole


def fill_agent_defaults(plain: dict[str, Any]) -> None:
    """Fill missing keys of a valid configuration's agents with the defaults of the schema, in place."""
    for agent in plain["task"]["agents"].values():
        for key, value in _agent_defaults().items():
            agent.setdefault(key, copy.deepcopy(value))


def _agent_defaults() -> dict[str, Any]:
    """The values that keys of agents have by their schema, for agents that the composition does not have."""
    defaults = {}
    for leaf in fields(schema.AgentPromptConfig):
        if leaf.default is not MISSING:
            defaults[leaf.name] = leaf.default
        elif leaf.default_factory is not MISSING:
            defaults[leaf.name] = leaf.default_factory()
    return {name: value.value if isinstance(value, Enum) else value for name, value in defaults.items()}


def _fill_group(group: str, value: Any, now: dict[str, Any], cls: type[Any] | None = None) -> None:
    if isinstance(value, dict):
        if group == "tracker":
            value.setdefault("kind", now["kind"])  # earlier versions had one kind, without a name
        cls = cls or SINGLE_SCHEMAS.get(group) or KINDS[group].get(str(value.get("kind")))
        if cls is not None:
            _fill_dataclass(cls, value, now)


def _fill_dataclass(cls: type[Any], value: dict[str, Any], now: dict[str, Any]) -> None:
    for leaf, part in get_type_hints(cls).items():
        if leaf not in value and leaf in now:
            value[leaf] = copy.deepcopy(now[leaf])
        elif is_dataclass(part) and isinstance(value.get(leaf), dict) and isinstance(now.get(leaf), dict):
            _fill_dataclass(part, value[leaf], now[leaf])  # type: ignore[arg-type]
