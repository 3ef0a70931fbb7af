"""Conversion of Hydra's errors: which overrides are wrong, and what would work."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ippo_cli.compose.explain import (
    CANNOT_COMPOSE,
    compose_cached,
    explain_override,
    explain_several_values,
    summarize_message,
)
from ippo_cli.compose.known_keys import unknown_overrides
from ippo_cli.compose.load import KINDS, config_dir, merge_agents
from ippo_cli.compose.plugins import plugin_error_from_message
from ippo_cli.compose.searchpath import SEARCH_PATH, list_options, user_option_files
from ippo_cli.compose.typed_kinds import kind_errors, split_typed_kinds
from ippo_cli.compose.validate import Mistake, find_value_mistakes, format_mistake, to_plain, validate_values
from ippo_cli.config.errors import ConfigError, UnknownKey, combine_errors
from ippo_cli.config.leaves import iter_leaves
from ippo_cli.config.schema import Config

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
    kinds, others = split_typed_kinds(overrides)
    ordered = sorted(others, key=_composition_order)
    options = config_groups([*base, *ordered])
    refused: dict[str, Exception | Mistake] = {text: UNKNOWN_KEY for text in unknown_overrides([*base, *ordered])}
    refused |= {text: error for text in ordered if (error := _parse_error(text, options)) is not None}
    in_files: list[Mistake] = []
    while found := _find_refused([text for text in ordered if text not in refused], base, in_files):
        refused |= found
    good = [*base, *(part for text in ordered if text not in refused for part in _first_value(text))]
    errors = [explain_override(text, good, refused[text], options) for text in ordered if text in refused]
    errors += kind_errors(kinds, compose_cached(tuple(good)), good) if kinds else []
    errors += [format_mistake(mistake) for mistake in in_files]
    if not sweeps:
        errors += [
            found for text in ordered if text not in _first_value(text) and (found := _several_values_error(text, good))
        ]
    return _drop_follow_up_errors(errors), good


def _parse_error(text: str, options: Mapping[str, Sequence[str]]) -> Exception | None:
    """The error of an override that Hydra cannot parse, or that chooses an option that does not exist."""
    try:
        OverridesParser.create().parse_override(text)
    except HydraException as error:
        return error
    group, _, option = _first_value(text)[0].lstrip("+").partition("=")
    return UNKNOWN_KEY if group in options and option.strip("'\"") not in options[group] else None


def _find_refused(
    ordered: Sequence[str], base: Sequence[str], in_files: list[Mistake]
) -> dict[str, Exception | Mistake]:
    """Compose overrides, and return those that Hydra or the schema refuses; `in_files` gets all other mistakes."""
    single = {text: _first_value(text)[0] for text in ordered}
    try:
        node = compose_cached((*base, *single.values()))
    except UnknownKey as error:
        return {text: error for text in ordered if text.partition("=")[0] == error.key}
    except (HydraException, OmegaConfBaseException) as error:
        named = [text for text in ordered if f"'{_key(text)}'" in str(error) or single[text] in str(error)]
        if not named and not ordered:
            raise
        return {(named or ordered)[-1]: error}
    found: dict[str, Exception | Mistake] = {}
    in_files.clear()
    for mistake in _find_mistakes(node):
        texts = [text for text in ordered if "/" not in text and _is_about(mistake, _key(text))]
        if texts and not mistake.is_missing:
            found[max(texts, key=lambda text: len(_key(text)))] = mistake
        else:
            in_files.append(mistake)
    return found


def _find_mistakes(node: DictConfig) -> list[Mistake]:
    """All mistakes of a composition; without those of interpolated values if one of them cannot be resolved."""
    try:
        return find_value_mistakes(Config, merge_agents(node))
    except ConfigError:
        bare = {key: value for key, value in node.items_ex(resolve=False) if key not in ("hydra", "sweep")}
        plain = OmegaConf.to_container(OmegaConf.create(bare), resolve=False)
        found = find_value_mistakes(Config, plain)
        return [mistake for mistake in found if not mistake.is_missing and "${" not in str(mistake.value)]


def _key(text: str) -> str:
    return text.partition("=")[0].lstrip("+~")


def _is_about(mistake: Mistake, key: str) -> bool:
    """Whether an override of this key has made a mistake; overrides that choose an option have a key without a dot."""
    within = mistake.key.startswith((f"{key}.", f"{key}[")) and "." in key
    return key == mistake.key or within or key.startswith(f"{mistake.key}.")


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
    try:
        plain = to_plain(validate_values(Config, merge_agents(compose_cached(tuple(good)))))
    except ConfigError:  # a mistake in a file
        return explain_several_values(text, None)
    return explain_several_values(text, dict(iter_leaves(plain)).get(_key(text)))
