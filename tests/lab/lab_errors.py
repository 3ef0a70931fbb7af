"""Errors of a configuration, those of an estimator of a package included."""

from __future__ import annotations

from collections.abc import Sequence

from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError, split_errors
from ippo_cli.planning.prepare import check_user_methods


def find_errors(overrides: Sequence[str]) -> list[str]:
    """The messages of all errors that end a run before a model loads; empty if it can start."""
    try:
        config = load_config(list(overrides))
        check_config(config, 1)
        check_user_methods(config)
    except ConfigError as error:
        return [str(one) for one in split_errors(error)]
    return []
