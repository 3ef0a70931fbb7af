"""Select the environment factory by task kind."""

from __future__ import annotations

from collections.abc import Callable

from ippo_cli.config.schema import (
    EnvironmentTaskConfig,
    GymnasiumConfig,
    PettingzooConfig,
    ReasoningGymConfig,
    UserEnvironmentConfig,
)
from ippo_cli.tasks.dry_run import SupportsActions
from ippo_cli.tasks.environments.checks import check_environment


def make_environment_factory(config: EnvironmentTaskConfig) -> Callable[[], SupportsActions]:
    """Return a factory of environments; an environment is reused across episodes.

    Environments are independent: several may be stepped in parallel, each in one thread. Raises `ConfigError`.
    """
    check_environment(config)
    # Optional packages are imported only if they are used.
    if isinstance(config, GymnasiumConfig):
        from ippo_cli.tasks.environments.gymnasium import make_gymnasium_factory

        return make_gymnasium_factory(config)
    if isinstance(config, PettingzooConfig):
        from ippo_cli.tasks.environments.pettingzoo import make_pettingzoo_factory

        return make_pettingzoo_factory(config)
    if isinstance(config, ReasoningGymConfig):
        from ippo_cli.tasks.environments.reasoning_gym import make_reasoning_gym_factory

        return make_reasoning_gym_factory(config)
    assert isinstance(config, UserEnvironmentConfig)
    from ippo_cli.tasks.environments.user_environment import make_user_environment_factory

    return make_user_environment_factory(config)


def newer_environment(config: EnvironmentTaskConfig) -> str | None:
    """Return the newest version of the environment if an older version is configured; else None."""
    if not isinstance(config, GymnasiumConfig) or config.env_id is None:
        return None
    from ippo_cli.tasks.environments.gymnasium import newer_environment as newer

    return newer(config.env_id)
