"""The reward that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AgentConfig, ExactMatchConfig, FunctionRewardConfig, GridRewardConfig, RewardConfig
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rewards.exact_match import ExactMatch
from ippo_cli.rewards.function import FunctionReward
from ippo_cli.rewards.grid import GridReward


def build_reward(config: RewardConfig, agents: Mapping[str, AgentConfig]) -> RewardFunction:
    """Raise `ConfigError` for a reward that cannot work with these agents."""
    if isinstance(config, ExactMatchConfig):
        answers: dict[str, str] = {}
        for name, agent in agents.items():
            if agent.answer is None:
                raise ConfigError(f"task.agents.{name}.answer=null", "leaves exact_match nothing to compare with",
                                  "give the reference answer as a template such as '{answer}'")  # fmt: skip
            answers[name] = agent.answer
        return ExactMatch(answers, config.match)
    if isinstance(config, GridRewardConfig):
        return GridReward(config.step_cost)
    assert isinstance(config, FunctionRewardConfig)
    if config.function is None:
        raise ConfigError("reward.function=null", "names no function", "set reward.function=path/to/file.py:function")
    return FunctionReward(config.function)
