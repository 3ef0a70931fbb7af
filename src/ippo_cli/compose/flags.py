"""Checks of command-line flags; suggests overrides for settings written with dashes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches

from ippo_cli.compose.arguments import LAUNCHER_FLAGS
from ippo_cli.config.errors import ConfigError, combine_errors

VALUELESS_FLAGS = (
    "-m",
    "--multirun",
    "--resolve",
    "-sc",
    "--shell-completion",
    "-r",
    "--run",
    "--hydra-help",
    "--info",
    "-i",
)
CFG_FLAGS = ("--cfg", "-c")
VALUE_FLAGS = (*CFG_FLAGS, "--config-dir", "-cd", "--package", "-p")
CFG_OPTION_FLAGS = ("--resolve", "--package", "-p")
OTHER_FLAGS = ("--help", "--version", "--explain", "--new-task", "--diff", "--completion")
ALL_FLAGS = [flag for flag in (*VALUELESS_FLAGS, *VALUE_FLAGS, *OTHER_FLAGS) if flag.startswith("--")]
FLAG_CUTOFF = 0.75
UNSUPPORTED_FLAGS = ("--config-path", "-cp", "--config-name", "-cn", "--experimental-rerun")


def check_flags(typed: Sequence[str], command_keys: Collection[str] = ()) -> None:
    """Raise `ConfigError` with every invalid flag; `command_keys` are the command's own keys."""
    if errors := list(flag_errors(typed, command_keys)):
        raise combine_errors(errors)


def flag_errors(typed: Sequence[str], command_keys: Collection[str] = ()) -> Iterator[ConfigError]:
    """Yield errors of invalid flags."""
    names = [text.partition("=")[0] for text in typed]
    for place, (text, flag) in enumerate(zip(typed, names, strict=True)):
        if not text.startswith("-") or text.startswith(LAUNCHER_FLAGS):
            continue
        value = text.partition("=")[2] or _next_argument(typed, place)
        if flag in UNSUPPORTED_FLAGS:
            yield ConfigError(flag, "is not supported", "add a folder of your own with --config-dir=FOLDER")
        elif flag in CFG_FLAGS and value not in ("job", "hydra", "all"):
            yield ConfigError(text, "needs a value", "use --cfg job, or --cfg job --resolve")
        elif flag in CFG_OPTION_FLAGS and not set(names) & set(CFG_FLAGS):
            yield ConfigError(flag, "has an effect with --cfg only", "use --cfg job --resolve")
        elif flag not in (*VALUELESS_FLAGS, *VALUE_FLAGS):
            flag_text = f"{text} {value}" if value and "=" not in text else text
            yield ConfigError(
                flag_text,
                "is not a flag; settings are written without dashes, as key=value",
                _suggest_override(flag, value, command_keys),
            )


def _next_argument(typed: Sequence[str], place: int) -> str:
    """The argument after a flag if it may be the flag's value, else an empty string."""
    following = typed[place + 1] if place + 1 < len(typed) else ""
    return "" if following.startswith("-") or "=" in following else following


def _suggest_override(flag: str, value: str, command_keys: Collection[str]) -> str:
    """Suggest a flag with a similar name, the key without dashes, or the remedy for that key as a mistyped override."""
    from ippo_cli.compose.diagnose import config_groups
    from ippo_cli.compose.explain import explain_unknown_name
    from ippo_cli.compose.known_keys import known_names

    key = flag.lstrip("-").replace("-", "_")
    if not key:
        return "see ippo-train --help"
    override = f"{key}={value or 'VALUE'}"
    if key in command_keys or key in known_names():
        return f"use {override}"
    if flag.startswith("--") and (close := get_close_matches(flag, ALL_FLAGS, n=1, cutoff=FLAG_CUTOFF)):
        return f"did you mean {close[0]}?"
    return str(explain_unknown_name(override, key, list(known_names()), config_groups())).partition("; ")[2]
