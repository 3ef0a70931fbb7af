"""Conversion of Hydra's errors: which overrides are wrong, and what would work."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ippo_cli.compose.explain import (
    CANNOT_COMPOSE,
    compose_cached,
    explain_override,
    explain_several_values,
    summarize_message,
)
from ippo_cli.compose.known_keys import unknown_overrides
from ippo_cli.compose.load import KINDS, config_dir
from ippo_cli.compose.plugins import plugin_error_from_message
from ippo_cli.compose.searchpath import SEARCH_PATH, list_options, user_option_files
from ippo_cli.config.errors import ConfigError, combine_errors

UNKNOWN_KEY = ConfigError("", "is not a key", "")
HIDDEN_GROUPS = ("base", "schema")
UNKNOWN_NAME = r"is not a key|names no agent"


def diagnose_error(overrides: Sequence[str], error: Exception) -> ConfigError:
    """Find the overrides that cannot be applied, with remedies; Hydra's message if there is none."""
    several = re.search(r"Ambiguous value for argument '(.*)'", str(error)) is not None
    errors, _ = check_overrides(overrides, sweeps=not several)
    if errors:
        return combine_errors(errors)
    return plugin_error_from_message(str(error)) or ConfigError(
        "configuration", CANNOT_COMPOSE, summarize_message(error)
    )


def check_overrides(
    overrides: Sequence[str], base: Sequence[str] = (), *, sweeps: bool = False
) -> tuple[list[ConfigError], list[str]]:
    """Return errors of invalid overrides, and `base` plus the valid overrides, each with a single value.

    `sweeps`: several values of a key are a sweep; only the first value is checked.
    """
    compose_cached.cache_clear()  # user files may have changed
    ordered = sorted(overrides, key=_composition_order)
    errors: list[ConfigError] = []
    good = list(base)
    unknown = unknown_overrides([*base, *ordered])
    _bisect_overrides([text for text in ordered if text not in unknown], good, errors)
    for text in unknown:
        errors.append(explain_override(text, good, UNKNOWN_KEY, config_groups(good)))
    places = {text.partition("=")[0]: place for place, text in enumerate(ordered)}
    errors.sort(key=lambda error: places.get(error.key, len(places)))
    if not sweeps:
        errors += [
            found for text in ordered if text not in _first_value(text) and (found := _several_values_error(text, good))
        ]
    return _drop_follow_up_errors(errors), good


def config_groups(overrides: Sequence[str] = ()) -> dict[str, list[str]]:
    """Configuration groups and their options, including user options that the overrides add."""
    found: dict[str, list[str]] = {}
    for group, file in (*list_options(config_dir()), *user_option_files(overrides)):
        if group.split("/")[0] not in HIDDEN_GROUPS:
            found.setdefault(group, []).append(file.stem)
    return found


def filter_completions(completions: str) -> str:
    """Remove internal groups from Hydra's shell completions."""
    internal = "|".join(HIDDEN_GROUPS)
    return re.sub(rf"(?<!\S)[+~]?(?:{internal})(?:[=/]\S*)?(?!\S)[ \n]?", "", completions)


def _bisect_overrides(ordered: Sequence[str], good: list[str], errors: list[ConfigError]) -> None:
    """Add valid overrides to `good` and errors of invalid ones to `errors`, by bisection."""
    if not ordered:
        return
    single = [part for text in ordered for part in _first_value(text)]
    try:
        compose_cached((*good, *single))
    except (HydraException, OmegaConfBaseException) as error:
        if len(ordered) == 1:
            errors.append(explain_override(ordered[0], good, error, config_groups(good)))
            return
        if ordered:
            _bisect_overrides(ordered[: len(ordered) // 2], good, errors)
            _bisect_overrides(ordered[len(ordered) // 2 :], good, errors)
            return
        raise
    good += single


def _drop_follow_up_errors(errors: list[ConfigError]) -> list[ConfigError]:
    """Drop unknown keys and agents of groups with an invalid option."""
    wrong = {error.key.lstrip("+") for error in errors if error.key.lstrip("+") in KINDS}
    return [
        error
        for error in errors
        if not (error.key.lstrip("+~").partition(".")[0] in wrong and re.search(UNKNOWN_NAME, str(error)))
    ]


def _composition_order(text: str) -> tuple[bool, bool]:
    """Sort key: search path first, then options of groups, because they determine which keys exist."""
    return not text.startswith(SEARCH_PATH), text.split("=")[0].lstrip("+~") not in config_groups()


def _first_value(text: str) -> list[str]:
    """Return the override with the first value of a sweep, because `seed=1,2` is invalid outside a sweep."""
    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException:
        return [text]
    if parsed.is_sweep_override():
        value = next(iter(parsed.sweep_string_iterator()))
        return [f"{text.split('=')[0]}={value}"]
    return [text]


def _several_values_error(text: str, good: Sequence[str]) -> ConfigError | None:
    """The error for several values outside a sweep; None if the first value already has an error."""
    if _first_value(text)[0] not in good:
        return None
    node = compose_cached(tuple(good))
    value = OmegaConf.select(node, text.partition("=")[0].lstrip("+"), throw_on_missing=False)
    return explain_several_values(text, OmegaConf.to_container(value) if OmegaConf.is_list(value) else value)
