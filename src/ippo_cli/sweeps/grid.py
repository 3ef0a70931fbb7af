"""The jobs of a grid: every combination of the values that `-m` is given."""

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
    """Each job's overrides, in the order in which Hydra lists them; `options` are those of a group, for globs."""
    values: dict[str, list[str]] = {}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        values[override.get_key_element()] = expand_override(override, options)
    return [normalize_arguments(job) for job in itertools.product(*values.values())]


def expand_override(override: Override, options: Callable[[str], list[str]]) -> list[str]:
    """One override for each value of a sweep."""
    text, key = str(override.input_line), override.get_key_element()
    if not override.is_sweep_override():
        return [text]
    value = override.value()
    if isinstance(value, Glob):
        known = options(override.key_or_group)
        if not value.filter(known):
            remedy = f"it has {' '.join(known)}" if known else f"{override.key_or_group} is no group of options"
            raise ConfigError(text, "matches no option", remedy)
        return [f"{key}={option}" for option in value.filter(known)]
    if not override.is_discrete_sweep():
        raise ConfigError(
            text,
            "is an interval to draw from, and the grid of -m needs values",
            "list some, or use a sweeper that draws, such as sweep=optuna",
        )
    listed = [f"{key}={_format_value(part)}" for part in override.sweep_iterator()]
    if not listed:
        raise ConfigError(text, "has no value", "give at least one")
    if twice := [one for one, count in Counter(listed).items() if count > 1]:
        raise ConfigError(text, f"lists {' '.join(twice)} more than once", "list it once: equal jobs come out equal")
    return listed


def _format_value(value: Any) -> str:
    """A value as it would be typed alone: Hydra's own spelling escapes what a path or `file.py:function` may hold."""
    if not isinstance(value, str):
        return Override._get_value_element_as_str(value)
    plain = re.fullmatch(r"[\w./:@%+-]+", value) is not None
    return value if plain else QuotedString(text=value, quote=Quote.single).with_quotes()
