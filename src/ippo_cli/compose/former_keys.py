"""Converts saved configurations and overrides of earlier versions: renamed and removed keys, renamed values.

The table is `earlier` in `peers.yaml`, which also answers a former name on the command line.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import yaml

from ippo_cli.compose.aliases import ADVANTAGE_ARGS, PEERS_FILE, SuggestionKind, read_advantage_keys, read_earlier_names

PREFIX = re.compile(
    r"[+~]*(?:sweep\.space\.)?(?:task\.agents\.[^.=]+\.)?(?P<part>reward\.parts\.[^.=]+\.)?"  # before a key
)


def convert_overrides(texts: Iterable[object]) -> list[str]:
    """Convert saved overrides and drop removed keys: `rollout.history=latest` becomes `rollout.context=last_only`."""
    converted = (_convert_override(str(text)) for text in texts)
    return [text for text in converted if text is not None]


def _convert_override(text: str) -> str | None:
    """An override with present names; None for a removed key."""
    typed, equals, value = text.partition("=")
    prefix = PREFIX.match(typed)
    assert prefix is not None
    within_part = "reward." if prefix["part"] else ""
    key = within_part + typed[prefix.end() :]
    if key in _removed_keys():
        return None
    new = _renamed_keys().get(key) or _renamed_groups().get(key, key)
    for old_value, new_value in _renamed_values().get(new, {}).items():  # also in a list, choice(...) or quotes
        value = re.sub(rf"(?<![\w.]){old_value}(?![\w.])", new_value, value)
    if "{" in value:
        value = _convert_mapping(new.partition(".")[0], value)
    return f"{typed[: prefix.end()]}{new.removeprefix(within_part)}{equals}{value}"


def _convert_mapping(top: str, text: str) -> str:
    """Convert names and values of keys of the group `top` in a value such as `{kind: number, right: 1}`."""
    for old, new in _renamed_keys().items():
        if old.startswith(f"{top}."):  # a name before "{" is a group, or a part of a reward with a name of the user
            text = re.sub(rf"(?<![\w.]){old.rpartition('.')[2]}(?=\s*:\s*[^\s{{])", new.rpartition(".")[2], text)
    for old, new in _renamed_groups().items():
        if old.startswith(f"{top}."):
            text = re.sub(rf"(?<![\w.]){old.rpartition('.')[2]}(?=\s*:\s*{{)", new.rpartition(".")[2], text)
    for key, values in _renamed_values().items():
        for old, new in values.items() if key.startswith(f"{top}.") else ():
            text = re.sub(rf"(?<![\w.])({key.rpartition('.')[2]}\s*:\s*){old}(?![\w.])", rf"\g<1>{new}", text)
    return text


def earlier_defaults(plain: Mapping[str, Any]) -> dict[str, str]:
    """Values of keys that a saved configuration lacks where this version has another default than it had."""
    rollout = _dict_at(plain, ["rollout"])
    return {"rollout.sampling": "inverse_cdf"} if rollout.get("kind") == "hf" and "sampling" not in rollout else {}


def set_values(plain: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Set keys of a configuration, in place."""
    for key, value in values.items():
        *groups, leaf = key.split(".")
        _dict_at(plain, groups)[leaf] = value


def convert_config(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved configuration with present names and values of keys, without removed keys."""
    renamed = copy.deepcopy(dict(plain))
    set_values(renamed, earlier_defaults(renamed))
    _convert_advantage(_dict_at(renamed, ["algorithm"]))
    for container, prefix in _containers(renamed):
        for old, new in _renamed_keys().items():
            if old.startswith(prefix) and not new.startswith(ADVANTAGE_ARGS):
                _move(container, old.removeprefix(prefix).split("."), new.removeprefix(prefix).split("."))
        for key, values in _renamed_values().items():
            if key.startswith(prefix):
                _replace_value(container, key.removeprefix(prefix).split("."), values)
    for key in _removed_keys():
        *groups, leaf = key.split(".")
        _dict_at(renamed, groups).pop(leaf, None)
    return renamed


def _convert_advantage(algorithm: dict[str, Any]) -> None:
    """Replace `advantage=function advantage_function=X` by `advantage=X`, and move keys of an estimator to
    `advantage_args`, in place; those of other estimators are dropped.
    """
    if isinstance(function := algorithm.pop("advantage_function", None), str):
        algorithm["advantage"] = function
    for estimator, names in read_advantage_keys().items():
        for old, new in names.items():
            *groups, leaf = old.split(".")
            source = _dict_at(algorithm, groups)
            if leaf in source:
                value = source.pop(leaf)
                if algorithm.get("advantage") == estimator:
                    algorithm.setdefault("advantage_args", {}).setdefault(new, value)
            if groups and not source:
                algorithm.pop(groups[0], None)


def _containers(plain: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The places of a configuration that can contain a key, with the prefix of the key that they stand for."""
    agents = _dict_at(plain, ["task", "agents"]).values()
    for level in (plain, *(agent for agent in agents if isinstance(agent, dict))):
        yield level, ""
        for part in _dict_at(level, ["reward", "parts"]).values():
            if isinstance(part, dict):
                yield part, "reward."


def _dict_at(plain: Mapping[str, Any], path: list[str]) -> dict[str, Any]:
    value: Any = plain
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _move(container: dict[str, Any], old: list[str], new: list[str]) -> None:
    """Move a value; no effect if it does not exist. Former and present key are in the same group."""
    source = _dict_at(container, old[:-1]) if old[:-1] else container
    if old[-1] not in source:
        return
    target = container
    for key in new[:-1]:
        target = target.setdefault(key, {})
    target.setdefault(new[-1], source.pop(old[-1]))
    if old[:-1] and not source:
        _dict_at(container, old[:-2]).pop(old[-2], None) if old[:-2] else container.pop(old[-2], None)


def _replace_value(container: dict[str, Any], path: list[str], values: Mapping[str, str]) -> None:
    group = _dict_at(container, path[:-1]) if path[:-1] else container
    if isinstance(group.get(path[-1]), str):
        group[path[-1]] = values.get(group[path[-1]], group[path[-1]])


@cache
def _renamed_keys() -> dict[str, str]:
    """Present keys by former key."""
    names = {old: entry.text for old, entry in read_earlier_names().items() if entry.kind is SuggestionKind.use}
    return {old: new for old, new in names.items() if re.fullmatch(r"[\w.]+", new)}


@cache
def _renamed_groups() -> dict[str, str]:
    """Present groups by former group, where every key below it has only a new group."""
    pairs = ((old.rpartition("."), new.rpartition(".")) for old, new in _renamed_keys().items())
    return {old[0]: new[0] for old, new in pairs if old[0] != new[0] and old[2] == new[2]}


@cache
def _removed_keys() -> tuple[str, ...]:
    """Full names of keys without a counterpart in this version."""
    return tuple(key for key, entry in read_earlier_names().items() if entry.kind is SuggestionKind.absent)


@cache
def _renamed_values() -> dict[str, dict[str, str]]:
    """By present key, present values by former value."""
    return yaml.safe_load(PEERS_FILE.read_text())["earlier_values"]
