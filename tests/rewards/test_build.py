"""Building rewards from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ippo_cli.compose.load import build_config, compose_node, resolve_config
from ippo_cli.config.schema import Config, FunctionRewardConfig
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.environment import EnvironmentReward
from ippo_cli.rewards.exact_match import ExactMatchReward
from ippo_cli.rewards.function import FunctionReward
from ippo_cli.rewards.response_adapter import ResponseRewardAdapter


@pytest.fixture(scope="module")
def config() -> Config:
    return build_config(resolve_config(compose_node([])))


def test_default_reward_is_exact_match(config: Config) -> None:
    reward = build_reward(config.reward, config.task.agents)
    assert isinstance(reward, ResponseRewardAdapter)
    assert reward.agents == ["low", "high"]
    assert isinstance(reward.function, ExactMatchReward)
    assert reward.function.answers == {"low": "{low}", "high": "{high}"}


def test_function_is_loaded_when_reward_is_built(
    config: Config, tmp_path: Path, settings: Callable[..., FunctionRewardConfig]
) -> None:
    (tmp_path / "mine.py").write_text("def f(examples, responses): return {'team': [0.5] * len(examples)}")
    reward = build_reward(settings(function=f"{tmp_path}/mine.py:f"), config.task.agents)
    assert isinstance(reward, ResponseRewardAdapter)
    assert isinstance(reward.function, FunctionReward)


def test_environment_reward_is_built(config: Config) -> None:
    chosen = build_config(resolve_config(compose_node(["reward=environment"])))
    reward = build_reward(chosen.reward, config.task.agents)
    assert isinstance(reward, EnvironmentReward)
    assert reward.agents == ["low", "high"]
