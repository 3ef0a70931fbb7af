"""The reward that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import (
    AgentConfig,
    EnvironmentRewardConfig,
    ExactMatchConfig,
    FunctionRewardConfig,
    GridRewardConfig,
    Gsm8kRewardConfig,
    NumberRewardConfig,
    RewardConfig,
)
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rewards.environment import EnvironmentReward
from ippo_cli.rewards.exact_match import ExactMatch
from ippo_cli.rewards.function import FunctionReward
from ippo_cli.rewards.grid import GridReward
from ippo_cli.rewards.gsm8k import Gsm8k
from ippo_cli.rewards.number import NearNumber
from ippo_cli.rewards.responses import OfResponses


def build_reward(config: RewardConfig, agents: Mapping[str, AgentConfig]) -> RewardFunction:
    """Raise `ConfigError` for a reward that cannot work with these agents."""
    names = list(agents)
    if isinstance(config, EnvironmentRewardConfig):
        return EnvironmentReward(names)
    if isinstance(config, ExactMatchConfig):
        return OfResponses(ExactMatch(_answers(config, agents), config.match), names)
    if isinstance(config, Gsm8kRewardConfig):
        return OfResponses(Gsm8k(_answers(config, agents), config.match), names)
    if isinstance(config, NumberRewardConfig):
        weights = {"right": config.right, "near": config.near, "bare": config.bare}
        return OfResponses(NearNumber(_answers(config, agents), weights), names)
    if isinstance(config, GridRewardConfig):
        return OfResponses(GridReward(config.step_cost), names)
    assert isinstance(config, FunctionRewardConfig)
    if config.function is None:
        raise ConfigError("reward.function=null", "names no function", "set reward.function=path/to/file.py:function")
    function = FunctionReward(config.function)
    return OfResponses(function, names, with_episodes=function.with_episodes)


def reads_payments(reward: RewardFunction) -> bool:
    """Whether a reward may look at what an environment or protocol pays."""
    return isinstance(reward, EnvironmentReward) or (isinstance(reward, OfResponses) and reward.with_episodes)


def _answers(config: RewardConfig, agents: Mapping[str, AgentConfig]) -> dict[str, str]:
    """The reference answers that there are, as templates, by agent; `ConfigError` where there is none."""
    answers = {name: agent.answer for name, agent in agents.items() if agent.answer is not None}
    if not answers:
        raise ConfigError(
            f"task.agents.{next(iter(agents))}.answer=null",
            f"leaves {config.kind.value} nothing to compare with",
            "give the reference answer as a template such as '{answer}'",
        )
    return answers
