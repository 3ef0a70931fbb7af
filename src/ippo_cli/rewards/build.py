"""Builds the reward that the configuration selects, from a table of constructors by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
from ippo_cli.rewards.exact_match import ExactMatchReward
from ippo_cli.rewards.format import FormatReward
from ippo_cli.rewards.function import FunctionReward
from ippo_cli.rewards.grid import GridReward
from ippo_cli.rewards.gsm8k import Gsm8kReward
from ippo_cli.rewards.http import HttpReward
from ippo_cli.rewards.judge import JudgeReward
from ippo_cli.rewards.length import LengthReward
from ippo_cli.rewards.math import MathReward
from ippo_cli.rewards.mix import MixPart, MixReward
from ippo_cli.rewards.model import ModelReward
from ippo_cli.rewards.number import NumberReward
from ippo_cli.rewards.response_adapter import ResponseReward, ResponseRewardAdapter

Agents = Mapping[str, AgentConfig]


def build_reward(config: RewardConfig, agents: Agents) -> RewardFunction:
    """Build the reward of a checked configuration; close it with `close_reward`. Raises `ConfigError` for user code."""
    return BUILDERS[config.kind](config, agents)


def uses_environment_reward(reward: RewardFunction) -> bool:
    """Whether a reward may read the rewards of the environment or protocol."""
    if isinstance(reward, MixReward):
        return any(uses_environment_reward(part.reward) for part in reward.parts.values())
    return isinstance(reward, EnvironmentReward) or (isinstance(reward, ResponseRewardAdapter) and reward.with_episodes)


def _adapt_response_reward(
    function: ResponseReward, agents: Agents, *, with_episodes: bool = False
) -> ResponseRewardAdapter:
    return ResponseRewardAdapter(function, list(agents), with_episodes=with_episodes)


def _build_exact_match(config: ExactMatchConfig, agents: Agents) -> RewardFunction:
    return _adapt_response_reward(ExactMatchReward(_reference_answers(agents), config.match), agents)


def _build_format(config: FormatRewardConfig, agents: Agents) -> RewardFunction:
    assert config.pattern is not None
    return _adapt_response_reward(FormatReward(config.pattern), agents)


def _build_function(config: FunctionRewardConfig, agents: Agents) -> RewardFunction:
    assert config.function is not None
    function = FunctionReward(
        config.function,
        per_sample=config.per_sample,
        concurrency=config.concurrency,
        process=config.process,
        timeout_s=config.timeout_s,
    )
    return _adapt_response_reward(function, agents, with_episodes=function.with_episodes)


def _build_grid(config: GridRewardConfig, agents: Agents) -> RewardFunction:
    return _adapt_response_reward(GridReward(config.step_cost), agents)


def _build_gsm8k(config: Gsm8kRewardConfig, agents: Agents) -> RewardFunction:
    return _adapt_response_reward(Gsm8kReward(_reference_answers(agents), config.match), agents)


def _build_http(config: HttpRewardConfig, agents: Agents) -> RewardFunction:
    return HttpReward(config, agents)


def _build_judge(config: JudgeRewardConfig, agents: Agents) -> RewardFunction:
    return JudgeReward(config, agents)


def _build_length(config: LengthRewardConfig, agents: Agents) -> RewardFunction:
    return LengthReward(list(agents), config.unit, config.low, config.high, config.margin)


def _build_math(config: MathRewardConfig, agents: Agents) -> RewardFunction:
    return _adapt_response_reward(MathReward(_reference_answers(agents), config.workers, config.timeout_s), agents)


def _build_mix(config: MixRewardConfig, agents: Agents) -> RewardFunction:
    parts = {
        name: MixPart(
            reward=build_reward(part, agents),
            weight=config.weights.get(name, 1.0),
            splittable=not (isinstance(part, FunctionRewardConfig) and part.whole_batch),
        )
        for name, part in config.parts.items()
    }
    return MixReward(parts, list(agents), config.failure_budget)


def _build_model(config: ModelRewardConfig, agents: Agents) -> RewardFunction:
    return ModelReward(config, agents)


def _build_number(config: NumberRewardConfig, agents: Agents) -> RewardFunction:
    weights = {"right": config.exact_weight, "near": config.near_weight, "bare": config.format_weight}
    return _adapt_response_reward(NumberReward(_reference_answers(agents), weights), agents)


BUILDERS: Mapping[RewardKind, Callable[[Any, Agents], RewardFunction]] = {
    RewardKind.code: lambda config, agents: _adapt_response_reward(CodeReward(config), agents),
    RewardKind.code_pair: lambda config, agents: _adapt_response_reward(CodePairReward(config), agents),
    RewardKind.environment: lambda _, agents: EnvironmentReward(list(agents)),
    RewardKind.exact_match: _build_exact_match,
    RewardKind.format: _build_format,
    RewardKind.function: _build_function,
    RewardKind.grid: _build_grid,
    RewardKind.gsm8k: _build_gsm8k,
    RewardKind.http: _build_http,
    RewardKind.judge: _build_judge,
    RewardKind.length: _build_length,
    RewardKind.math: _build_math,
    RewardKind.mix: _build_mix,
    RewardKind.model: _build_model,
    RewardKind.number: _build_number,
}


def _reference_answers(agents: Agents) -> dict[str, str]:
    """The templates of the reference answers, of the agents that have one."""
    return {name: agent.answer for name, agent in agents.items() if agent.answer is not None}
