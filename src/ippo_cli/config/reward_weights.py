"""Weights of each agent's score, and checks for weights without effect."""

from __future__ import annotations

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import (
    CodePairRewardConfig,
    Config,
    EnvironmentRewardConfig,
    FunctionRewardConfig,
    GridRewardConfig,
    MixRewardConfig,
    RewardWeightsConfig,
)


def reward_weights(config: Config) -> dict[str, RewardWeightsConfig]:
    """Weights by agent, in the task's order."""
    return {name: agent.reward for name, agent in config.task.agents.items()}


def check_reward_weights(config: Config) -> None:
    """Raise `ConfigError` for weights that leave no reward, or that weight numbers which the reward never returns.

    The numbers of a reward function are known only after its first call.
    """
    for name, weights in reward_weights(config).items():
        common = all(getattr(config.reward, key) == value for key, value in vars(weights).items())
        where = "reward" if common else f"task.agents.{name}.reward"
        if not weights.team_weight and not weights.agent_weight:
            raise ConfigError(f"{where}.team_weight=0 {where}.agent_weight=0", "leave no reward", "set one of them")
        if isinstance(config.reward, EnvironmentRewardConfig):
            if not weights.turn_weight:
                raise ConfigError(
                    f"{where}.turn_weight=0", "leaves no reward: reward=environment rewards single turns", "use 1.0"
                )
        elif not isinstance(config.reward, FunctionRewardConfig | MixRewardConfig):
            _check_unused_weights(config, where, weights)


def _check_unused_weights(config: Config, where: str, weights: RewardWeightsConfig) -> None:
    """Raise for weights without effect: these rewards give no turn rewards, and some give no agent rewards."""
    kind = config.reward.kind
    if weights.turn_weight != 1.0:
        raise ConfigError(
            f"{where}.turn_weight={weights.turn_weight}",
            f"has no effect: reward={kind} gives no turn rewards",
            "use 1.0, or reward=function or environment",
        )
    if isinstance(config.reward, GridRewardConfig | CodePairRewardConfig) and weights.agent_weight:
        raise ConfigError(
            f"{where}.agent_weight={weights.agent_weight}",
            f"has no effect: reward={kind} gives team rewards only",
            "use 0.0",
        )
