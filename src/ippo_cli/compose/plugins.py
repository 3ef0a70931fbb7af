"""Hydra launchers and sweepers in separate packages: errors with the package to install."""

from __future__ import annotations

import re

from ippo_cli.config.errors import ConfigError

PACKAGES = {
    "hydra/launcher": {
        "joblib": "hydra-joblib-launcher",
        "submitit_local": "hydra-submitit-launcher",
        "submitit_slurm": "hydra-submitit-launcher",
        "ray": "hydra-ray-launcher",
        "ray_aws": "hydra-ray-launcher",
        "rq": "hydra-rq-launcher",
    },
    "hydra/sweeper": {
        "ax": "hydra-ax-sweeper",
        "nevergrad": "hydra-nevergrad-sweeper",
    },
}


def missing_plugin_error(group: str, option: str) -> ConfigError:
    """The error for an option of `hydra/launcher` or `hydra/sweeper` that Hydra does not find."""
    if (group, option) == ("hydra/sweeper", "optuna"):
        return ConfigError(f"{group}={option}", "needs optuna below version 3", "use sweep=optuna")
    package = PACKAGES[group].get(option)
    if package is not None:
        return ConfigError(f"{group}={option}", "needs a plugin that is not installed here", f"pip install {package}")
    known = " ".join(["basic", *PACKAGES[group]])
    return ConfigError(f"{group}={option}", "is not known", f"use one of {known}, or install the package that has it")


def plugin_error_from_message(words: str) -> ConfigError | None:
    """The same error from Hydra's message, for an option chosen in a user file; None for other messages."""
    match = re.search(r"(hydra/launcher|hydra/sweeper)/(\w+)", words)
    return missing_plugin_error(match[1], match[2]) if match else None
