"""Which responses have a form."""

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


def test_the_whole_response_must_match_over_line_ends(make: Make) -> None:
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


def test_the_team_has_the_mean_over_its_agents(make: Make) -> None:
    assert make(r"\d+")([{}], {"a": ["12"], "b": ["x"]}).team == [0.5]


def test_a_response_on_which_a_pattern_takes_for_ever_has_failed_and_costs_no_other(make: Make) -> None:
    found = make("(a+)+b", 0.5)([{}] * 3, {"a": ["ab", "a" * 60, "c"]})
    assert found.agent["a"][::2] == [1.0, 0.0]
    assert str(found.failures[1]) == "matching '(a+)+b': it took longer than 0.5 s"
    assert found.final, "it would take as long again"
