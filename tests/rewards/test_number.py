"""Partial credit for numbers."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.gsm8k import reference_number
from ippo_cli.rewards.number import NumberReward, score_parts
from ippo_cli.rewards.response_adapter import ResponseRewardAdapter

WEIGHTS = {"right": 0.5, "near": 0.25, "bare": 0.25}


@pytest.mark.parametrize(
    ("text", "right", "near", "bare"),
    [
        ("42", 1.0, 1.0, 1.0),
        (" 42\n", 1.0, 1.0, 1.0),
        ("42.0", 1.0, 1.0, 1.0),
        ("42.", 1.0, 1.0, 0.0),
        ("17 + 25 equals 42", 1.0, 1.0, 0.0),
        ("42 is more than 25", 0.0, 1 - 17 / 42, 0.0),  # the last number counts
        ("40", 0.0, 1 - 2 / 42, 1.0),
        ("44", 0.0, 1 - 2 / 42, 1.0),
        ("100", 0.0, 0.0, 1.0),  # the error exceeds the reference
        ("-42", 0.0, 0.0, 1.0),
        ("forty-two", 0.0, 0.0, 0.0),
        ("", 0.0, 0.0, 0.0),
        ("9" * 5000, 0.0, 0.0, 1.0),
    ],
)
def test_score_parts(text: str, right: float, near: float, bare: float) -> None:
    assert score_parts(text, Decimal(42)) == {"right": right, "near": pytest.approx(near), "bare": bare}


def test_nearness() -> None:
    assert score_parts("1", Decimal(0))["near"] == 0.0
    assert score_parts("0.5", Decimal(0))["near"] == 0.5
    assert score_parts("-90", Decimal(-100))["near"] == pytest.approx(0.9)


def test_weighted_sum_and_team_mean() -> None:
    reward = NumberReward({"add": "{sum}", "subtract": "{difference}"}, WEIGHTS)
    rows = [{"sum": 42, "difference": 8}] * 2
    found = reward(rows, {"add": ["42", "so 42"], "subtract": ["8", "none"], "critic": ["", ""]})
    assert found.agent == {"add": [1.0, 0.75], "subtract": [1.0, 0.0], "critic": [1.0, 0.375]}
    assert found.team == [1.0, 0.375]
    assert found.parts == {"right": [1.0, 0.5], "near": [1.0, 0.5], "bare": [1.0, 0.0]}


def test_reference_without_number_has_no_score() -> None:
    found = NumberReward({"solo": "{answer}"}, WEIGHTS)([{"answer": "none"}], {"solo": ["42"]})
    assert found.team is not None
    assert math.isnan(found.team[0])
    assert math.isnan(found.parts["right"][0])


def test_build_with_weights() -> None:
    config = load_config(["task=arithmetic", "reward.near_weight=0.1"])
    reward = build_reward(config.reward, config.task.agents)
    assert isinstance(reward, ResponseRewardAdapter)
    assert isinstance(reward.function, NumberReward)
    assert reward.function.weights == {"right": 0.5, "near": 0.1, "bare": 0.25}
    assert reward.function.answers == {"solo": "{sum}"}


def test_reference_answer_is_required() -> None:
    with pytest.raises(
        ConfigError, match=r"^task\.agents\.solo\.answer=null is not a reference answer, and reward=number needs one"
    ):
        check_config(load_config(["task=arithmetic", "actor=full", "actor.model=x", "task.agents.solo.answer=null"]), 1)


@pytest.mark.parametrize("reference", ["3/4", "20 m^2", "10^6", "1e3", "#### 3/4", "5 or 6", "2 apples", "", "x = 3"])
def test_reference_that_is_not_a_number(reference: str) -> None:
    assert reference_number(reference) is None


@pytest.mark.parametrize(
    ("reference", "number"),
    [
        ("42", 42),
        ("-$1,024.00", -1024),
        ("so 7.\n#### 1,024", 1024),
        ("50%", 50),
        ("€20", 20),
        (".5", 0.5),
        ("42.", 42),
    ],
)
def test_reference_that_is_a_number(reference: str, number: float) -> None:
    assert reference_number(reference) == Decimal(str(number))


def test_references_are_checked_before_training() -> None:
    reward = NumberReward({"solver": "{answer}"}, {"right": 1.0})
    assert reward.validate_examples([{"answer": "4"}]) == []
    [warning] = reward.validate_examples([{"answer": "4"}, {"answer": "3/4"}])
    assert "1 of 2 checked reference answers are not a number, such as '3/4'" in warning
    with pytest.raises(ConfigError, match="which is not a number; use reward=math"):
        reward.validate_examples([{"answer": "10^6"}])
