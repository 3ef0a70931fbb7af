"""Scores of response lengths."""

from __future__ import annotations

import pytest
from spoken import episode, spoken_once

from ippo_cli.config.schema import LengthUnit
from ippo_cli.rewards.length import LengthReward


@pytest.mark.parametrize(
    ("length", "worth"), [(0, 0.0), (6, 0.0), (8, 0.5), (10, 1.0), (20, 1.0), (22, 0.5), (24, 0.0), (99, 0.0)]
)
def test_score_by_length(length: int, worth: float) -> None:
    assert LengthReward(["a"], LengthUnit.words, 10, 20, 4).score_length(length) == worth


def test_no_margin_and_no_upper_bound() -> None:
    assert [LengthReward(["a"], LengthUnit.words, 2, None, 0).score_length(n) for n in (1, 2, 10**6)] == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(("unit", "length"), [("words", 2.0), ("characters", 5.0), ("tokens", 7.0)])
def test_units_count_all_turns(unit: str, length: float) -> None:
    talk = [episode(("a", 0, "one", "", True, 4), ("a", 1, "ab", "", True, 3))]
    assert LengthReward(["a"], LengthUnit(unit), 0, 9, 1)(talk).parts == {"length": [length]}


def test_team_reward_is_mean_over_agents() -> None:
    found = LengthReward(["a", "b"], LengthUnit.words, 0, 1, 0)(spoken_once([{}], {"a": ["x"], "b": ["x y"]}))
    assert (found.team, found.agent) == ([0.5], {"a": [1.0], "b": [0.0]})
