"""The reward that the configuration names: one table from kinds to what makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import (
    AgentConfig,
    ExactMatchConfig,
    FormatRewardConfig,
    FunctionRewardConfig,
    GridRewardConfig,
    Gsm8kRewardConfig,
    HttpRewardConfig,
    JudgeRewardConfig,
    LengthRewardConfig,
    MathRewardConfig,
    MixRewardConfig,
    ModelRewardConfig,
    NumberRewardConfig,
    RewardConfig,
    RewardKind,
)
from ippo_cli.rewards.code.reward import CodePairReward, CodeReward
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rewards.environment import EnvironmentReward
from ippo_cli.rewards.exact_match import ExactMatch
from ippo_cli.rewards.format import FormatReward
from ippo_cli.rewards.function import FunctionReward
from ippo_cli.rewards.grid import GridReward
from ippo_cli.rewards.gsm8k import Gsm8k
from ippo_cli.rewards.http import HttpReward
from ippo_cli.rewards.judge import JudgeReward
from ippo_cli.rewards.length import LengthReward
from ippo_cli.rewards.math import MathReward
from ippo_cli.rewards.mix import MixPart, MixReward
from ippo_cli.rewards.model import ModelReward
from ippo_cli.rewards.number import NearNumber
from ippo_cli.rewards.response_adapter import OfResponses, ResponseReward

Agents = Mapping[str, AgentConfig]


def build_reward(config: RewardConfig, agents: Agents) -> RewardFunction:
    """Raise `ConfigError` for a reward that cannot work with these agents. What is built is to be closed."""
    return BUILDERS[config.kind](config, agents)


def reads_payments(reward: RewardFunction) -> bool:
    """Whether a reward may look at what an environment or protocol pays."""
    if isinstance(reward, MixReward):
        return any(reads_payments(part.reward) for part in reward.parts.values())
    return isinstance(reward, EnvironmentReward) or (isinstance(reward, OfResponses) and reward.with_episodes)


def _of_responses(function: ResponseReward, agents: Agents, *, with_episodes: bool = False) -> OfResponses:
    return OfResponses(function, list(agents), with_episodes=with_episodes)


def _exact_match(config: ExactMatchConfig, agents: Agents) -> RewardFunction:
    return _of_responses(ExactMatch(_answers(config, agents), config.match), agents)


def _format(config: FormatRewardConfig, agents: Agents) -> RewardFunction:
    assert config.pattern is not None
    return _of_responses(FormatReward(config.pattern), agents)


def _function(config: FunctionRewardConfig, agents: Agents) -> RewardFunction:
    if config.function is None:
        raise ConfigError("reward.function=null", "names no function", "set reward.function=path/to/file.py:function")
    function = FunctionReward(
        config.function,
        per_sample=config.per_sample,
        concurrency=config.concurrency,
        process=config.process,
        timeout_s=config.timeout_s,
    )
    return _of_responses(function, agents, with_episodes=function.with_episodes)


def _grid(config: GridRewardConfig, agents: Agents) -> RewardFunction:
    return _of_responses(GridReward(config.step_cost), agents)


def _gsm8k(config: Gsm8kRewardConfig, agents: Agents) -> RewardFunction:
    return _of_responses(Gsm8k(_answers(config, agents), config.match), agents)


def _http(config: HttpRewardConfig, agents: Agents) -> RewardFunction:
    return HttpReward(config, agents)


def _judge(config: JudgeRewardConfig, agents: Agents) -> RewardFunction:
    return JudgeReward(config, agents)


def _length(config: LengthRewardConfig, agents: Agents) -> RewardFunction:
    return LengthReward(list(agents), config.unit, config.low, config.high, config.margin)


def _math(config: MathRewardConfig, agents: Agents) -> RewardFunction:
    return _of_responses(MathReward(_answers(config, agents), config.workers, config.timeout_s), agents)


def _mix(config: MixRewardConfig, agents: Agents) -> RewardFunction:
    parts = {
        name: MixPart(
            reward=build_reward(part, agents),
            weight=config.weights.get(name, 1.0),
            divisible=not (isinstance(part, FunctionRewardConfig) and part.whole_batch),
        )
        for name, part in config.parts.items()
    }
    return MixReward(parts, list(agents), config.failure_budget)


def _model(config: ModelRewardConfig, agents: Agents) -> RewardFunction:
    return ModelReward(config, agents)


def _number(config: NumberRewardConfig, agents: Agents) -> RewardFunction:
    weights = {"right": config.right, "near": config.near, "bare": config.bare}
    return _of_responses(NearNumber(_answers(config, agents), weights), agents)


BUILDERS: Mapping[RewardKind, Callable[[Any, Agents], RewardFunction]] = {
    RewardKind.code: lambda config, agents: _of_responses(CodeReward(config), agents),
    RewardKind.code_pair: lambda config, agents: _of_responses(CodePairReward(config), agents),
    RewardKind.environment: lambda _, agents: EnvironmentReward(list(agents)),
    RewardKind.exact_match: _exact_match,
    RewardKind.format: _format,
    RewardKind.function: _function,
    RewardKind.grid: _grid,
    RewardKind.gsm8k: _gsm8k,
    RewardKind.http: _http,
    RewardKind.judge: _judge,
    RewardKind.length: _length,
    RewardKind.math: _math,
    RewardKind.mix: _mix,
    RewardKind.model: _model,
    RewardKind.number: _number,
}


def _answers(config: RewardConfig, agents: Agents) -> dict[str, str]:
    """The reference answers that there are, as templates, by agent; `ConfigError` where there is none."""
    answers = {name: agent.answer for name, agent in agents.items() if agent.answer is not None}
    if not answers:
        raise ConfigError(
            f"task.agents.{next(iter(agents))}.answer=null",
            f"leaves {config.kind.value} nothing to compare with",
            "give the reference answer as a template such as '{answer}'",
        )
    return answers
