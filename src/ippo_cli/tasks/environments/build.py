"""Select the environment factory by task kind."""

from __future__ import annotations

from collections.abc import Callable

from ippo_cli.config.schema import EnvironmentTaskConfig, GymnasiumConfig, load_implementation
from ippo_cli.tasks.dry_run import SupportsActions
from ippo_cli.tasks.environments.checks import check_environment


def make_environment_factory(config: EnvironmentTaskConfig) -> Callable[[], SupportsActions]:
    """Return a factory of environments; an environment is reused across episodes.

    Environments are independent: several may be stepped in parallel, each in one thread. Raises `ConfigError`.
    """
    check_environment(config)
    return load_implementation("task", config.kind, "environment")(config)


def newer_environment(config: EnvironmentTaskConfig) -> str | None:
    """Return the newest version of the environment if an older version is configured; else None."""
    if not isinstance(config, GymnasiumConfig) or config.env_id is None:
        return None
    from ippo_cli.tasks.environments.gymnasium import newer_environment as newer

    return newer(config.env_id)
