"""Matching of responses with a pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ippo_cli.rewards.format import FormatReward

Make = Callable[..., FormatReward]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[FormatReward] = []

    def reward(*args: Any) -> FormatReward:
        made.append(FormatReward(*args))
        return made[-1]

    yield reward
    for one in made:
        one.close()


def test_pattern_matches_whole_response(make: Make) -> None:
    worth = {
        "<think>a\nb</think> 3": 1.0,
        "  <think></think>\n": 1.0,
        "so <think>a</think> 3": 0.0,
        "<think>a": 0.0,
        "": 0.0,
    }
    found = make("<think>.*</think>.*")([{}] * len(worth), {"a": list(worth)})
    assert found.agent == {"a": list(worth.values())}
    assert not found.failures


def test_team_reward_is_mean_over_agents(make: Make) -> None:
    assert make(r"\d+")([{}], {"a": ["12"], "b": ["x"]}).team == [0.5]


def test_pattern_timeout_fails_only_its_row(make: Make) -> None:
    found = make("(a+)+b", 0.5)([{}] * 3, {"a": ["ab", "a" * 60, "c"]})
    assert found.agent["a"][::2] == [1.0, 0.0]
    assert str(found.failures[1]) == "matching '(a+)+b': the call took longer than 0.5 s"
    assert found.final, "a retry would take as long"
