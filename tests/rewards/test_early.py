"""A reward that begins before all rows are there answers as if it had not."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from ippo_cli.rewards.contract import Responses, Reward
from ippo_cli.rewards.early import EarlyReward, overlapped

EXAMPLES = [{"number": number} for number in range(7)]
TEXTS = {"low": [f"l{row}" for row in range(7)], "high": [f"h{row}" for row in range(7)]}


def told(examples: Sequence[Any], responses: Responses) -> Reward:
    """Numbers that show which example met which responses."""
    numbers = [example["number"] for example in examples]
    assert list(responses["low"]) == [f"l{number}" for number in numbers]
    assert list(responses["high"]) == [f"h{number}" for number in numbers]
    return Reward(
        team=[float(number) for number in numbers],
        agent={"low": [number + 0.25 for number in numbers], "high": [number + 0.5 for number in numbers]},
        parts={"twice": [2.0 * number for number in numbers]} | ({"odd": [1.0] * len(numbers)} if 3 in numbers else {}),
        valid=[number != 5 for number in numbers],
    )


def all_said(early: EarlyReward, order: Sequence[int] = range(7)) -> None:
    for agent in TEXTS:
        for row in order:
            early.said(agent, [row], [TEXTS[agent][row]])


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("order", [range(7), [6, 2, 4, 0, 1, 5, 3]])
def test_the_answer_is_the_same_in_any_order_and_in_any_parts(rows: int, order: Sequence[int]) -> None:
    early = EarlyReward(told, EXAMPLES, list(TEXTS), rows)
    all_said(early, order)
    found, expected = early(EXAMPLES, TEXTS), told(EXAMPLES, TEXTS)
    assert found.team == expected.team
    assert found.agent == expected.agent
    assert found.valid == expected.valid
    assert found.parts["twice"] == expected.parts["twice"]
    # A part that only some calls give has no number elsewhere.
    assert found.parts["odd"][3] == 1.0
    assert all(number == 1.0 or math.isnan(number) for number in found.parts["odd"])


def test_it_begins_while_rows_are_missing_and_asks_for_none_twice() -> None:
    asked: list[int] = []
    begun = threading.Event()

    def noted(examples: Sequence[Any], responses: Responses) -> Reward:
        asked.extend(example["number"] for example in examples)
        begun.set()
        return told(examples, responses)

    early = EarlyReward(noted, EXAMPLES, list(TEXTS), 2)
    early.said("low", list(range(7)), TEXTS["low"])
    early.said("high", [4], ["h4"])
    assert not begun.wait(0.05), "one complete row is too few"
    early.said("high", [1], ["h1"])
    assert begun.wait(5.0)
    early(EXAMPLES, TEXTS)
    assert sorted(asked) == list(range(7))


def test_a_failure_is_raised_by_the_call_and_only_its_rows_are_asked_again() -> None:
    asked: list[list[int]] = []

    def failing_once(examples: Sequence[Any], responses: Responses) -> Reward:
        asked.append([example["number"] for example in examples])
        if asked[-1] == [2, 3] and asked.count([2, 3]) == 1:
            raise OSError("the judge is away")
        return told(examples, responses)

    early = EarlyReward(failing_once, EXAMPLES, list(TEXTS), 2)
    all_said(early)
    with pytest.raises(OSError, match="judge"):
        early(EXAMPLES, TEXTS)
    assert early(EXAMPLES, TEXTS).team == [float(row) for row in range(7)]
    assert [4, 5] in asked
    assert sum(part.count(4) for part in asked) == 1


def test_an_answer_that_breaks_the_contract_is_refused_as_without_overlap() -> None:
    early = EarlyReward(lambda examples, responses: Reward(team=[1.0]), EXAMPLES, list(TEXTS), 3)
    all_said(early)
    with pytest.raises(ValueError, match="one entry for each of the 3 rows"):
        early(EXAMPLES, TEXTS)


def test_without_overlap_the_reward_is_itself() -> None:
    with overlapped(told, EXAMPLES, list(TEXTS), 0) as (reward, said):
        assert reward is told
        assert said is None
