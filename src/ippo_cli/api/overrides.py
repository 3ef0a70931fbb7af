"""Conversion of Python values to overrides, as on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ippo_cli.config.commands import hydra_override, quote_for_hydra
from ippo_cli.config.errors import ConfigError

Overrides = str | Iterable[str] | Mapping[str, Any]
"""`"key=value"`, a list of such texts, or a mapping of keys to values, nested or with dots."""
FOLDER_FLAG = "--config-dir="


def to_overrides(items: Iterable[Overrides], keys: Mapping[str, Any]) -> list[str]:
    """Convert overrides in any of the three forms, then `keys`, to texts `key=value`. Raises `ConfigError`.

    >>> to_overrides(["seed=1", {"actor": {"learning_rate": 1e-4}}], {"task": "sorting"})
    ['seed=1', 'actor.learning_rate=0.0001', 'task=sorting']
    >>> to_overrides([{"rollout.stop_strings": ["A:", "B c"], "num_epochs": None}], {"deterministic": True})
    ["rollout.stop_strings=['A:','B c']", 'num_epochs=null', 'deterministic=true']
    """
    return [text for item in (*items, keys) for text in _texts(item)]


def _texts(item: Overrides) -> Iterator[str]:
    if isinstance(item, Mapping):
        yield from _flatten(item)
        return
    for text in item if isinstance(item, Iterable) and not isinstance(item, str) else [item]:
        if not isinstance(text, str) or (text.startswith("-") and not text.startswith(FOLDER_FLAG)):
            raise ConfigError(str(text), "is not an override", "use 'key=value', or a mapping such as {'seed': 1}")
        yield text


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, key)
        elif isinstance(value, str):
            yield hydra_override(key, value)
        else:
            yield f"{key}={_format_value(key, value)}"


def _format_value(key: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return quote_for_hydra(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_format_value(key, part) for part in value)}]"
    if hasattr(value, "__fspath__"):
        return hydra_override("", str(value)).removeprefix("=")
    if isinstance(value, Mapping):
        return "{}"
    raise ConfigError(
        f"{key}={value!r}", "is not a value of a configuration", "use numbers, texts, booleans, None or lists"
    )
