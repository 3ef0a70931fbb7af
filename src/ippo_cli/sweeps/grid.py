"""The jobs of a grid: all combinations of the values in the overrides of `-m`."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, Quote, QuotedString

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.config.errors import ConfigError


def expand_grid(overrides: Sequence[str], options: Callable[[str], list[str]]) -> list[list[str]]:
    """The overrides of each job, in Hydra's order. `options` returns the options of a group, for globs."""
    values: dict[str, list[str]] = {}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        values[override.get_key_element()] = expand_override(override, options)
    return [normalize_arguments(job) for job in itertools.product(*values.values())]


def expand_override(override: Override, options: Callable[[str], list[str]]) -> list[str]:
    """One override per value. Raises `ConfigError` for intervals, empty lists, duplicates and globs without a match."""
    text, key = str(override.input_line), override.get_key_element()
    if not override.is_sweep_override():
        return [text]
    value = override.value()
    if isinstance(value, Glob):
        known = options(override.key_or_group)
        if not value.filter(known):
            remedy = f"choose from {' '.join(known)}" if known else f"{override.key_or_group} is not a group of options"
            raise ConfigError(text, "matches no option", remedy)
        return [f"{key}={option}" for option in value.filter(known)]
    if not override.is_discrete_sweep():
        raise ConfigError(
            text,
            "is an interval, and a grid needs a list of values",
            "list the values, or use a sweep that samples values, such as sweep=optuna",
        )
    listed = [f"{key}={_format_value(part)}" for part in override.sweep_iterator()]
    if not listed:
        raise ConfigError(text, "has no value", "list at least one value")
    if duplicates := [value for value, count in Counter(listed).items() if count > 1]:
        raise ConfigError(
            text, f"lists {' '.join(duplicates)} more than once", "list it once: equal jobs have equal results"
        )
    return listed


def _format_value(value: Any) -> str:
    """A value as it would be typed; Hydra's own format escapes characters of paths and of `file.py:function`."""
    if not isinstance(value, str):
        return Override._get_value_element_as_str(value)
    plain = re.fullmatch(r"[\w./:@%+-]+", value) is not None
    return value if plain else QuotedString(text=value, quote=Quote.single).with_quotes()
