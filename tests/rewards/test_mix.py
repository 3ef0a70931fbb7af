"""Mixes: weighted sums of rewards that are called, retried, logged and normalized separately."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from spoken import episode, spoken_once

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import build_config, compose_node, config_dir, from_yaml, resolve_config, to_yaml
from ippo_cli.compose.mix import complete_parts
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.rewards import check_rewards
from ippo_cli.config.schema import (
    Config,
    Gsm8kRewardConfig,
    LengthRewardConfig,
    MixRewardConfig,
    RewardConfig,
)
from ippo_cli.rewards.build import build_reward, uses_environment_reward
from ippo_cli.rewards.contract import Reward, close_reward
from ippo_cli.rewards.mix import MixPart, MixReward, weighted_sum
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.score import call_reward, score
from ippo_cli.types import Episode

PARTS = {"right": {"kind": "gsm8k"}, "brief": {"kind": "length", "unit": "words", "high": 2, "margin": 4}}
TASK = ("task=gsm8k", "task.train=a.jsonl", "task.eval=b.jsonl", "actor=full", "actor.model=m", "reward=mix")
EPISODES = spoken_once([{"answer": "#### 7"}] * 3, {"solver": ["#### 7", "so #### 7 then", "#### 8"]})


@cache
def composed() -> dict[str, Any]:
    return resolve_config(compose_node(TASK))


def configured(parts: Any, **changes: Any) -> Config:
    plain = copy.deepcopy(composed())
    plain["algorithm"]["advantage"] = changes.pop("advantage", plain["algorithm"]["advantage"])
    plain["reward"] |= {"parts": parts, **changes}
    complete_parts(plain["reward"], config_dir() / "reward")
    config = build_config(plain)
    check_rewards(config)
    return config


def test_parts_have_the_keys_of_their_kinds(tmp_path: Path) -> None:
    parts = "reward.parts={right: {kind: gsm8k}, brief: {kind: length, unit: words, high: 2}}"
    node = compose_node(
        normalize_arguments([*TASK, parts, "reward.parts.right.match=flexible", "reward.weights.brief=0.5"])
    )
    (tmp_path / "config.yaml").write_text(to_yaml(resolve_config(node)))
    config = from_yaml(tmp_path / "config.yaml")
    check_config(config, 1)
    assert isinstance(config.reward, MixRewardConfig)
    right, brief = config.reward.parts.values()
    assert isinstance(right, Gsm8kRewardConfig)
    assert right.match.value == "flexible"
    assert isinstance(brief, LengthRewardConfig)
    assert (brief.low, brief.high, config.reward.weights) == (0, 2, {"brief": 0.5})
    assert build_config(resolve_config(node)) == config


def test_weighted_sum_and_logged_parts() -> None:
    config = configured(PARTS, weights={"brief": 0.5})
    reward = build_reward(config.reward, config.task.agents)
    found, failure = call_reward(reward, EPISODES, ["solver"], config.reward)
    assert failure is None
    assert found.team == found.agent["solver"] == [1.5, 1.25, 0.5]
    assert found.parts == {
        "right": [1.0, 1.0, 0.0],
        "brief": [1.0, 0.5, 1.0],
        "right.strict": [1.0, 1.0, 0.0],
        "right.flexible": [1.0, 1.0, 0.0],
        "brief.length": [2.0, 4.0, 2.0],
    }
    assert not uses_environment_reward(reward)


def test_normalized_parts_do_not_change_logged_score() -> None:
    config = configured(PARTS, weights={"right": 2.0}, normalize=["brief"])
    reward = build_reward(config.reward, config.task.agents)
    found = score(reward, EPISODES, config.reward, {"solver": ScoreMoments()}).scores["solver"]
    brief = torch.tensor([1.0, 0.5, 1.0])
    expected = 2 * torch.tensor([1.0, 1.0, 0.0]) + (brief - brief.mean()) / brief.std()
    torch.testing.assert_close(found.score[:, 0], expected)
    assert found.raw[:, 0].tolist() == [3.0, 2.5, 1.0]


def test_normalization_excludes_rows_with_failed_parts(settings: Any) -> None:
    def whole(episodes: Sequence[Episode]) -> Reward:
        return Reward(team=[1.0, 2.0, 99.0][: len(episodes)])

    def failing(episodes: Sequence[Episode]) -> Reward:
        return Reward(team=[0.0] * len(episodes), valid=[True, True, False][: len(episodes)])

    common = {leaf.name: getattr(settings(), leaf.name) for leaf in fields(RewardConfig)}
    mix = MixRewardConfig(
        **{**common, "kind": "mix", "failure_budget": 1.0},
        parts={"a": settings(), "b": settings()},
        weights={},
        normalize=["a"],
    )
    parts = {name: MixPart(reward=part, weight=1.0, splittable=True) for name, part in (("a", whole), ("b", failing))}
    found = score(MixReward(parts, ["solver"], 1.0), EPISODES, mix, {"solver": ScoreMoments()}).scores["solver"]
    assert found.score[:, 0].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5, 0.0])


@pytest.mark.parametrize("turn_weight", [1.0, 0.5, 0.0])
def test_normalized_scores_have_mean_0_and_deviation_1(settings: Any, turn_weight: float) -> None:
    result = [episode(*(("solver", step, "") for step in range(turns)), index=turns) for turns in (1, 2, 3, 0)]
    worth = [4.0, 1.0, 0.0, 100.0]  # the last row has no turns

    def part(episodes: Sequence[Episode]) -> Reward:
        by_turn = [[2.0] * one.index if one.index else [] for one in episodes]
        return Reward(agent={"solver": worth}, agent_by_turn={"solver": by_turn})

    config = settings(team_weight=0.0, agent_weight=1.0, turn_weight=turn_weight)
    common = {leaf.name: getattr(config, leaf.name) for leaf in fields(RewardConfig)}
    mix = MixRewardConfig(**{**common, "kind": "mix"}, parts={"a": config}, weights={}, normalize=["a"])
    parts = {"a": MixPart(reward=part, weight=1.0, splittable=True)}
    found = score(MixReward(parts, ["solver"], 1.0), result, mix, {"solver": ScoreMoments()}).scores["solver"]
    totals = found.score.sum(dim=1)[:3]
    assert totals.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert totals.std().item() == pytest.approx(1.0)
    assert found.raw.sum(dim=1)[:3].tolist() == [4 + 2 * turn_weight, 1 + 4 * turn_weight, 6 * turn_weight]


class Part:
    """A reward that counts its calls and fails for rows of some examples while `fails` is true."""

    def __init__(self, fails: Callable[[int, int], bool]) -> None:
        self.fails, self.calls, self.closed = fails, 0, 0

    def __call__(self, episodes: Sequence[Episode]) -> Reward:
        self.calls += 1
        failed = {row: ValueError("no") for row, one in enumerate(episodes) if self.fails(one.index, self.calls)}
        return Reward(team=[math.nan if row in failed else 1.0 for row in range(len(episodes))], failures=failed)

    def close(self) -> None:
        self.closed += 1


def test_failed_part_is_retried_alone(settings: Any) -> None:
    transient, lasting, well = Part(lambda row, call: call == 1), Part(lambda row, _: row == 2), Part(lambda *_: False)
    parts = {
        name: MixPart(reward=part, weight=weight, splittable=True)
        for name, part, weight in (("a", transient, 1.0), ("b", lasting, 2.0), ("c", well, 4.0))
    }
    mix = MixReward(parts, ["solver"], 0.5)
    found, failure = call_reward(mix, EPISODES, ["solver"], settings())
    assert (transient.calls, lasting.calls, well.calls) == (2, 3, 1)
    assert str(failure) == "b: no"
    assert found.team is not None
    assert found.team[:2] == [7.0, 7.0]
    assert found.valid == [True, True, False]
    close_reward(mix)
    assert [part.closed for part in (transient, lasting, well)] == [1, 1, 1]


def test_all_kinds_of_numbers_are_summed() -> None:
    one = Reward(team=[1.0], agent={"a": [2.0]}, team_by_step=[[1.0, 2.0]], agent_by_turn={"a": [[3.0]]})
    other = Reward(team_by_step=[[10.0, 20.0]], agent={"a": [5.0]}, valid=[False])
    assert weighted_sum({"x": one, "y": other}, {"x": 1.0, "y": 0.5}) == Reward(
        team=[1.0], agent={"a": [4.5]}, team_by_step=[[6.0, 12.0]], agent_by_turn={"a": [[3.0]]}, valid=[False]
    )


@pytest.mark.parametrize(
    ("parts", "changes", "rule"),
    [
        ({}, {}, "reward.parts={} leaves no reward"),
        ({"a": {"high": 3}}, {}, "reward.parts.a has no kind; use"),
        ({"a": {"kind": "mix"}}, {}, "reward.parts.a.kind=mix cannot be a part; use one of"),
        ({"a": {"kind": "length", "hihg": 3}}, {}, "reward.parts.a.hihg is an unknown key"),
        ({"a": {"kind": "length", "scale": 3}}, {}, "reward.parts.a.scale is a key of the whole mix"),
        ({"a": {"kind": "length"}}, {}, "reward.parts.a.low=0 reward.parts.a.high=null allow every length"),
        ({"a": {"kind": "code"}}, {}, "reward.parts.a.sandbox=none runs no generated code; set"),
        ({"a b": {"kind": "gsm8k"}}, {}, "reward.parts.a b is used in metric names"),
        (PARTS, {"weights": {"rihgt": 1.0}}, "reward.weights names rihgt, which is not a part"),
        (PARTS, {"weights": {"right": 0, "brief": 0}}, "reward.weights leave no reward"),
        (
            PARTS,
            {"normalize": ["brief"], "advantage": "greedy_baseline"},
            "reward.normalize=['brief'] normalises scores",
        ),
        (PARTS, {"normalize": ["brief"], "weights": {"brief": 0}}, "reward.normalize=['brief'] names brief, which has"),
    ],
)
def test_invalid_mix_raises(parts: Any, changes: Any, rule: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configured(parts, **changes)
    assert str(raised.value).startswith(rule)


def test_parts_receive_unchanged_episodes() -> None:
    config = configured({"brief": {"kind": "length", "unit": "words", "high": 1}})
    talk = [episode(("solver", 0, "a"), ("solver", 2, "b c"))]
    found = build_reward(config.reward, config.task.agents)(talk)
    assert found.parts["brief.length"] == [3.0]
