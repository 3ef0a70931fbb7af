"""All mistakes of a command line, not only the first that made the command fail."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from ippo_cli.compose.explain import CANNOT_COMPOSE
from ippo_cli.compose.validate import WrongConfig
from ippo_cli.config.commands import hydra_override, last_value, parse_path
from ippo_cli.config.errors import ConfigError, IppoError, UnknownKey, collect_errors, split_errors

RUN_KEYS = ("resume", "run")
NO_OVERRIDES = ("--new-task",)


def find_mistakes(error: Exception, typed: Sequence[str], command_keys: Collection[str] | None) -> list[ConfigError]:
    """Return all mistakes of a command line, `error` included.

    `command_keys`: the command's own keys; None for a command without overrides. Empty if Hydra failed for a reason
    other than a mistake.
    """
    reported = list(split_errors(error)) if isinstance(error, ConfigError) and not isinstance(error, UnknownKey) else []
    if command_keys is None or any(text.startswith(NO_OVERRIDES) for text in typed):
        return reported
    first = [] if isinstance(error, WrongConfig) else reported
    try:
        others = _check_command_line(typed, command_keys)
    except (IppoError, HydraException, OmegaConfBaseException, OSError, ValueError):
        others = []  # the error prevents further checks
    if first:  # what Hydra says about an option that `first` explains
        others = [found for found in others if CANNOT_COMPOSE not in str(found)]
        in_files = tuple(f".{found.key.partition(': ')[2]}" for found in first if ", line " in found.key)
        others = [found for found in others if not found.key.endswith(in_files)]  # with its line already
    if first or others:
        return collect_errors([lambda: others], first)
    if reported:
        return reported
    from ippo_cli.compose.arguments import is_override, normalize_arguments
    from ippo_cli.compose.diagnose import diagnose_error

    try:
        return [
            diagnose_error(
                [text for text in normalize_arguments(_run_overrides(typed, command_keys)) if is_override(text)], error
            )
        ]
    except (HydraException, OmegaConfBaseException):
        return []


def _check_command_line(typed: Sequence[str], own: Collection[str]) -> list[ConfigError]:
    """Errors of flags, of single arguments, and of the configuration composed of the valid arguments."""
    from ippo_cli.compose.arguments import SWEEP_FLAGS
    from ippo_cli.compose.diagnose import check_overrides
    from ippo_cli.compose.flags import flag_errors
    from ippo_cli.config.evaluation import check_evaluation_overrides

    errors = [*flag_errors(typed, own), *_run_errors(typed)]
    readable = _normalize_valid(_run_overrides(typed, own), errors)
    if any(text.startswith("=") for text in readable):
        return errors
    base, is_sweep = find_saved_overrides(typed), any(flag in typed for flag in SWEEP_FLAGS)
    wrong, good = check_overrides(readable, base, sweeps=is_sweep)
    errors += wrong
    if "run" in own:
        typed_now, of_model = [text for text in readable if text in good], any(text[:6] == "model=" for text in typed)
        errors = collect_errors([lambda: check_evaluation_overrides(typed_now, of_model=of_model)], errors)
    return errors + _rule_errors(good, errors, own)


def _run_errors(typed: Sequence[str]) -> Iterator[ConfigError]:
    """Yield the error of a folder in `resume=` that is neither a run nor a sweep."""
    from ippo_cli.compose.resume import RESUME_WORDS, missing_run_error

    wanted = last_value(typed, "resume")
    if wanted is None or wanted in RESUME_WORDS:
        return
    folder = parse_path(wanted)
    if not any((folder / name).is_file() for name in ("config.yaml", "sweep.json")):
        yield missing_run_error(wanted)


def _run_overrides(typed: Sequence[str], own: Collection[str]) -> list[str]:
    """Arguments for a run's keys; includes `--config-dir`, because it defines options."""
    from ippo_cli.compose.arguments import FOLDER_FLAGS
    from ippo_cli.compose.flags import VALUELESS_FLAGS

    others = (*own, "resume")
    result: list[str] = []
    flag = ""  # previous flag, if the next argument may be its value
    for text in typed:
        key, equals, _ = text.partition("=")
        is_value = bool(flag) and not equals and not text.startswith("-")
        is_other = is_value or text.startswith("-") or key in others
        if key in FOLDER_FLAGS or (is_value and flag in FOLDER_FLAGS) or not is_other:
            result.append(text)
        flag = key if text.startswith("-") and not equals and key not in VALUELESS_FLAGS else ""
    return result


def _normalize_valid(texts: Sequence[str], errors: list[ConfigError]) -> list[str]:
    """Normalise arguments for Hydra; adds errors of invalid arguments to `errors` and drops these arguments."""
    from ippo_cli.compose.arguments import normalize_arguments

    try:
        return normalize_arguments(texts)
    except ConfigError:
        good: list[str] = []
        for text in texts:
            try:
                normalize_arguments([text])
            except ConfigError as error:
                errors += split_errors(error)
            else:
                good.append(text)
        try:
            return normalize_arguments(good)
        except ConfigError:  # several values of one key that are valid alone
            return normalize_arguments(list({text.partition("=")[0].lstrip("+"): text for text in good}.values()))


def _rule_errors(good: Sequence[str], errors: Sequence[ConfigError], own: Collection[str]) -> list[ConfigError]:
    """Errors of rules for the configuration composed of the valid overrides of a command with the keys `own`.

    A chat has its task, so only rules about its typed keys apply. After other errors only rules about typed
    keys are reported, and none about keys that a mistyped key may mean.
    """
    from ippo_cli.compose.diagnose import config_groups
    from ippo_cli.compose.explain import compose_cached
    from ippo_cli.compose.load import build_config, resolve_config
    from ippo_cli.compose.named_files import check_named_files
    from ippo_cli.config.checks import check_config
    from ippo_cli.config.hardware import world_size
    from ippo_cli.engine.launchers import external_world_size

    training = "run" not in own

    def check_rules() -> Iterator[ConfigError]:
        config = build_config(resolve_config(compose_cached(tuple(good))))
        ranks = world_size(config, external_world_size())
        yield from collect_errors([lambda: check_config(config, ranks, training=training)])
        if training:
            yield from check_named_files(config)
        else:
            yield from check_named_files(config, models=False, training=False, data=False, typed=keys)

    keys = {text.partition("=")[0].lstrip("+~") for text in good}
    if errors and not keys:
        return []
    found = collect_errors([check_rules], errors)[len(errors) :]
    if not errors:
        return found if training or "compare" in own else [error for error in found if error.key in keys]
    choice_is_wrong = any(error.key.lstrip("+") in config_groups() for error in errors)
    meant = {key for error in errors for key in re.findall(r"[a-z_]+(?:\.\w+)+", str(error).partition("; ")[2])}
    return [
        error
        for error in found
        if (error.key in keys or any("." in key and error.key.startswith(f"{key}.") for key in keys))
        and ("out of range" in str(error) or not (choice_is_wrong or any(key in str(error) for key in meant)))
    ]


def find_saved_overrides(typed: Sequence[str]) -> list[str]:
    """Saved overrides of the run in `resume=` or `run=`, or those of `model=`."""
    from ippo_cli.compose.resume import saved_overrides

    if (model := last_value(typed, "model")) is not None:
        return ["actor=full", hydra_override("actor.model", model)]

    for text in typed:
        key, _, value = text.partition("=")
        if key in RUN_KEYS and (folder := Path(os.path.expanduser(value))).is_dir():
            return saved_overrides(folder) if (folder / "overrides.json").is_file() else []
    return []
