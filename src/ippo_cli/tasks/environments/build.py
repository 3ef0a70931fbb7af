"""Select the environment factory by task kind, and check its settings without its packages."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.reward_models import is_web_address
from ippo_cli.config.schema import (
    EnvironmentTaskConfig,
    GymnasiumConfig,
    OpenEnvConfig,
    PettingzooConfig,
    ReasoningGymConfig,
    SteppedEnvironmentConfig,
    TextArenaConfig,
    UserEnvironmentConfig,
    load_implementation,
)
from ippo_cli.tasks.dry_run import SupportsActions
from ippo_cli.tasks.environments.examples import MAX_SEED

# Config class -> (required package, the extra with it, key that must be set, example value).
REQUIREMENTS: dict[type[EnvironmentTaskConfig], tuple[str | None, str, str, str]] = {
    GymnasiumConfig: ("gymnasium", "environments", "env_id", "FrozenLake-v1"),
    PettingzooConfig: ("pettingzoo", "environments", "env_id", "classic/tictactoe_v3"),
    ReasoningGymConfig: ("reasoning_gym", "environments", "dataset", "chain_sum"),
    TextArenaConfig: ("textarena", "textarena", "env_id", "SimpleNegotiation-v0"),
    OpenEnvConfig: ("websockets", "openenv", "url", "http://127.0.0.1:8000"),
    UserEnvironmentConfig: (None, "", "environment", "my_env.py:make"),
}
SINGLE_AGENT: dict[type[EnvironmentTaskConfig], str] = {
    GymnasiumConfig: "an environment of gymnasium",
    ReasoningGymConfig: "a question of reasoning_gym",
    OpenEnvConfig: "an environment of OpenEnv",
}


def check_environment(config: EnvironmentTaskConfig) -> None:
    """Raise `ConfigError` for the first rule that an environment's configuration violates."""
    if type(config) not in REQUIREMENTS:
        return
    package, extra, key, example = REQUIREMENTS[type(config)]
    if getattr(config, key) is None:
        raise ConfigError(f"task.{key}=null", "names no environment", f"set it, for example task.{key}={example}")
    if package is not None and find_spec(package) is None:
        raise ConfigError(
            f"task.{key}={getattr(config, key)}",
            f"needs the package {package}, which is not installed",
            f"run pip install 'ippo-cli[{extra}]'",
        )
    if config.train_size + config.eval_size > MAX_SEED:
        raise ConfigError(
            f"task.train_size={config.train_size} task.eval_size={config.eval_size}",
            f"request more than {MAX_SEED} seeds",
            "lower the sizes",
        )
    if isinstance(config, SteppedEnvironmentConfig) and config.max_turns is not None and config.max_turns < 1:
        raise ConfigError(f"task.max_turns={config.max_turns}", "allows no turn", "use at least 1, or null")
    if isinstance(config, ReasoningGymConfig) and config.num_turns < 1:
        raise ConfigError(f"task.num_turns={config.num_turns}", "allows no turn", "use at least 1")
    if type(config) in SINGLE_AGENT and len(config.agents) > 1:
        raise ConfigError(
            "task.agents={" + ",".join(config.agents) + "}",
            f"names several agents, but {SINGLE_AGENT[type(config)]} has one",
            "name one agent",
        )
    if isinstance(config, OpenEnvConfig):
        _check_openenv(config)


def _check_openenv(config: OpenEnvConfig) -> None:
    if not is_web_address(str(config.url), ("http", "https", "ws", "wss")):
        raise ConfigError(f"task.url={config.url}", "is not an HTTP address", "use task.url=http://127.0.0.1:8000")
    for part in ("action", "observation"):
        field, function = getattr(config, f"{part}_field"), getattr(config, f"{part}_function")
        if field is not None and function is not None:
            raise ConfigError(
                f"task.{part}_field={field} task.{part}_function={function}",
                "define the conversion twice",
                "set one of them to null",
            )


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
