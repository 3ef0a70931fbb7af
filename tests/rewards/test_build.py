"""The reward that the configuration names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ippo_cli.compose.load import build_config, compose_node, resolve_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, FunctionRewardConfig
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.environment import EnvironmentReward
from ippo_cli.rewards.exact_match import ExactMatchReward
from ippo_cli.rewards.function import FunctionReward
from ippo_cli.rewards.response_adapter import ResponseRewardAdapter


@pytest.fixture(scope="module")
def config() -> Config:
    return build_config(resolve_config(compose_node([])))


def test_the_default_compares_with_every_agents_answer(config: Config) -> None:
    reward = build_reward(config.reward, config.task.agents)
    assert isinstance(reward, ResponseRewardAdapter)
    assert reward.agents == ["low", "high"]
    assert isinstance(reward.function, ExactMatchReward)
    assert reward.function.answers == {"low": "{low}", "high": "{high}"}


def test_exact_match_needs_an_answer_of_some_agent(config: Config) -> None:
    agents = dict(config.task.agents)
    silent = {name: type(agent)(**{**vars(agent), "answer": None}) for name, agent in agents.items()}
    build_reward(config.reward, {**agents, "low": silent["low"]})
    with pytest.raises(ConfigError, match=r"^task\.agents\.low\.answer=null leaves .*; "):
        build_reward(config.reward, silent)


def test_a_function_is_looked_up_when_the_reward_is_built(
    config: Config, tmp_path: Path, settings: Callable[..., FunctionRewardConfig]
) -> None:
    (tmp_path / "mine.py").write_text("def f(examples, responses): return {'team': [0.5] * len(examples)}")
    reward = build_reward(settings(function=f"{tmp_path}/mine.py:f"), config.task.agents)
    assert isinstance(reward, ResponseRewardAdapter)
    assert isinstance(reward.function, FunctionReward)
    with pytest.raises(ConfigError, match=r"^reward\.function=null names no function; "):
        build_reward(settings(function=None), config.task.agents)


def test_what_the_environment_paid_is_a_reward_of_its_own(config: Config) -> None:
    chosen = build_config(resolve_config(compose_node(["reward=environment"])))
    reward = build_reward(chosen.reward, config.task.agents)
    assert isinstance(reward, EnvironmentReward)
    assert reward.agents == ["low", "high"]
