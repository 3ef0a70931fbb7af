"""Worlds by kind: what makes them."""

from __future__ import annotations

from collections.abc import Callable

from ippo_cli.config.schema import (
    GymnasiumConfig,
    OwnEnvironmentConfig,
    PettingzooConfig,
    ReasoningGymConfig,
    WorldConfig,
)
from ippo_cli.tasks.dry_run import Playable
from ippo_cli.tasks.environments.checks import check_world


def make_environment(config: WorldConfig) -> Callable[[], Playable]:
    """What makes worlds of this configuration, each for one episode at a time and any number of them in a row.

    Raises `ConfigError` where that will not work. Every call gives a world of its own; several may be stepped at the
    same time, each in one thread.
    """
    check_world(config)
    # Each kind's package is imported only where it is used.
    if isinstance(config, GymnasiumConfig):
        from ippo_cli.tasks.environments.gymnasium import gymnasium_worlds

        return gymnasium_worlds(config)
    if isinstance(config, PettingzooConfig):
        from ippo_cli.tasks.environments.pettingzoo import pettingzoo_worlds

        return pettingzoo_worlds(config)
    if isinstance(config, ReasoningGymConfig):
        from ippo_cli.tasks.environments.reasoning_gym import reasoning_gym_worlds

        return reasoning_gym_worlds(config)
    assert isinstance(config, OwnEnvironmentConfig)
    from ippo_cli.tasks.environments.user_environment import own_environments

    return own_environments(config)


def newer_environment(config: WorldConfig) -> str | None:
    """The newest version of the environment, where an older one is configured that the package still has."""
    if not isinstance(config, GymnasiumConfig) or config.env_id is None:
        return None
    from ippo_cli.tasks.environments.gymnasium import newer_environment as newer

    return newer(config.env_id)
