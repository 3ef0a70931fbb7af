"""Builds the reward that the configuration selects."""

from __future__ import annotations

from ippo_cli.config.schema import MixRewardConfig, RewardConfig, load_implementation
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rewards.environment import EnvironmentReward
from ippo_cli.rewards.mix import MixPart, MixReward
from ippo_cli.rewards.response_adapter import Agents, ResponseRewardAdapter


def build_reward(config: RewardConfig, agents: Agents) -> RewardFunction:
    """Build the reward; close it with `close_reward`. Raises `ConfigError` if it does not work with these agents."""
    return load_implementation("reward", config.kind, "build")(config, agents)


def build_mix_reward(config: MixRewardConfig, agents: Agents) -> MixReward:
    """Build the parts of a mix."""
    parts = {
        name: MixPart(
            reward=build_reward(part, agents),
            weight=config.weights.get(name, 1.0),
            splittable=not part.compares_rows,
        )
        for name, part in config.parts.items()
    }
    return MixReward(parts, list(agents), config.failure_budget)


def uses_environment_reward(reward: RewardFunction) -> bool:
    """Whether a reward may read the rewards of the environment or protocol."""
    if isinstance(reward, MixReward):
        return any(uses_environment_reward(part.reward) for part in reward.parts.values())
    return isinstance(reward, EnvironmentReward) or (isinstance(reward, ResponseRewardAdapter) and reward.with_episodes)
