"""Checks of environment settings that do not import the environment packages."""

from __future__ import annotations

from importlib.util import find_spec

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import (
    EnvironmentTaskConfig,
    GymnasiumConfig,
    PettingzooConfig,
    ReasoningGymConfig,
    SteppedEnvironmentConfig,
    UserEnvironmentConfig,
)
from ippo_cli.tasks.environments.examples import MAX_SEED

# Config class -> (required package, key that must be set, example value).
REQUIREMENTS: dict[type[EnvironmentTaskConfig], tuple[str | None, str, str]] = {
    GymnasiumConfig: ("gymnasium", "env_id", "FrozenLake-v1"),
    PettingzooConfig: ("pettingzoo", "env_id", "classic/tictactoe_v3"),
    ReasoningGymConfig: ("reasoning_gym", "dataset", "chain_sum"),
    UserEnvironmentConfig: (None, "environment", "my_env.py:make"),
}


def check_environment(config: EnvironmentTaskConfig) -> None:
    """Raise `ConfigError` for the first rule that an environment's configuration violates."""
    if type(config) not in REQUIREMENTS:
        return
    package, key, example = REQUIREMENTS[type(config)]
    if getattr(config, key) is None:
        raise ConfigError(f"task.{key}=null", "names no environment", f"set it, for example task.{key}={example}")
    if package is not None and find_spec(package) is None:
        raise ConfigError(
            f"task.{key}={getattr(config, key)}",
            f"needs the package {package}, which is not installed",
            "run pip install 'ippo-cli[environments]'",
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
    if isinstance(config, GymnasiumConfig | ReasoningGymConfig) and len(config.agents) > 1:
        raise ConfigError(
            "task.agents={" + ",".join(config.agents) + "}",
            f"names several agents, but {'an environment' if isinstance(config, GymnasiumConfig) else 'a question'} of "
            f"{package} has one",
            "name one agent",
        )
