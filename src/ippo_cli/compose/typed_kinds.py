"""Refuses `GROUP.kind=VALUE` on a command line: an option of the group has a kind, and the values that belong to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ippo_cli.compose.load import KINDS, compose_node, config_dir
from ippo_cli.compose.searchpath import list_options, load_builtin_option, user_option_files
from ippo_cli.config.errors import ConfigError, combine_errors

KIND_KEYS = tuple(f"{group}.kind" for group in (*KINDS, "sweep"))


def check_typed_kinds(overrides: Sequence[str], base: Sequence[str] = ()) -> None:
    """Raise `ConfigError` for overrides of a kind that differ from the chosen option; `base`: those of a saved run."""
    settings = [text for text in overrides if not text.startswith("-") and ("=" in text or text.startswith("~"))]
    typed, others = split_typed_kinds(settings)
    if typed and (errors := list(kind_errors(typed, compose_node([*base, *others]), others))):
        raise combine_errors(errors)


def split_typed_kinds(overrides: Iterable[str]) -> tuple[list[str], list[str]]:
    """Separate overrides of `GROUP.kind` from the others."""
    typed: list[str] = []
    others: list[str] = []
    for text in overrides:
        (typed if text.partition("=")[0].lstrip("+") in KIND_KEYS else others).append(text)
    return typed, others


def kind_errors(typed: Iterable[str], node: DictConfig, overrides: Sequence[str]) -> Iterator[ConfigError]:
    """Yield an error for each typed kind that a composition of the other overrides does not have."""
    for text in typed:
        key, _, value = text.lstrip("+").partition("=")
        group = key.removesuffix(".kind")
        if str(OmegaConf.select(node, key)) == value.strip("'\""):
            continue
        kinds = dict(kinds_of_options(group, overrides))
        wanted = [part.strip("'\" ") for part in value.strip("'\"[]").split(",")]
        found = [option for part in wanted for option, kind in kinds.items() if kind == part]
        remedy = " or ".join(f"{group}={option}" for option in found) or f"{group}=OPTION: {' '.join(kinds)}"
        yield ConfigError(text, f"cannot be set alone: the option of {group} has it", f"use {remedy}")


def kinds_of_options(group: str, overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options of a group, those of the user included, and their kinds."""
    for place, file in (*list_options(config_dir()), *user_option_files(overrides)):
        if place == group and (kind := _read_kind(file, group)) is not None:
            yield file.stem, kind


def _read_kind(file: Path, group: str) -> str | None:
    """The kind of an option file: its own, under its group in a global file, or that of the last entry of its defaults
    that has one.
    """
    values: Any = load_builtin_option(file.read_text(encoding="utf-8")) if file.is_file() else None
    if not isinstance(values, dict):
        return None
    own = values.get(group)
    for part in (values, own if isinstance(own, dict) else {}):
        if "kind" in part:
            return str(part["kind"])
    for entry in reversed(values.get("defaults") or []):
        if isinstance(entry, str) and entry != "_self_":
            name = entry.partition("@")[0]
            above = config_dir() if name.startswith("/") else file.parent
            if (kind := _read_kind(above / f"{name.lstrip('/')}.yaml", group)) is not None:
                return kind
    return None
