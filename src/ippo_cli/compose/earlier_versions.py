"""Configurations that earlier versions wrote down."""

from __future__ import annotations

import copy
from dataclasses import is_dataclass
from typing import Any, get_type_hints

from ippo_cli.compose.load import KEYS_PER_AGENT, KINDS, PER_AGENT, PLAIN
from ippo_cli.config import schema


def completed(plain: dict[str, Any], today: dict[str, Any]) -> dict[str, Any]:
    """A configuration that an earlier version wrote down: keys that it did not know have their values of `today`.

    `today` is what the same overrides give now, so that these are the defaults of keys that came later.
    """
    whole = copy.deepcopy(plain)
    if not isinstance(whole.get("task"), dict):
        return whole
    for group in (*KINDS, *PLAIN):
        value = whole.setdefault(group, copy.deepcopy(today[group]))
        _complete_group(group, value, today[group])
    for name, agent in whole["task"].get("agents", {}).items():
        now = today["task"]["agents"].get(name, {})
        _complete(schema.SpeakerConfig, agent, now)
        for group in PER_AGENT:
            value = agent.setdefault(group, copy.deepcopy(now.get(group, {})))
            _complete_group(group, value, now.get(group, {}), KEYS_PER_AGENT.get(group))
    for name, part in (whole["reward"].get("parts") or {}).items():
        _complete_group("reward", part, (today["reward"].get("parts") or {}).get(name, {}))
    _complete(schema.RunConfig, whole, today)
    return whole


def _complete_group(group: str, value: Any, now: dict[str, Any], cls: type[Any] | None = None) -> None:
    if isinstance(value, dict):
        if group == "tracker":
            value.setdefault("kind", now["kind"])  # there was one kind, which had no name
        cls = cls or PLAIN.get(group) or KINDS[group].get(str(value.get("kind")))
        if cls is not None:
            _complete(cls, value, now)


def _complete(cls: type[Any], value: dict[str, Any], now: dict[str, Any]) -> None:
    for leaf, part in get_type_hints(cls).items():
        if leaf not in value and leaf in now:
            value[leaf] = copy.deepcopy(now[leaf])
        elif is_dataclass(part) and isinstance(value.get(leaf), dict) and isinstance(now.get(leaf), dict):
            _complete(part, value[leaf], now[leaf])  # type: ignore[arg-type]
