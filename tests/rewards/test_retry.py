"""Which rows a reward is asked about again after it failed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ippo_cli.rewards.contract import Responses, Reward
from ippo_cli.rewards.retry import ATTEMPTS
from ippo_cli.rewards.score import attempt

Make = Callable[..., Any]
ROWS = [{"n": row} for row in range(16)]
TEXTS = {"solo": [f"text {row}" for row in range(16)]}


class Flaky:
    """Answers each row with its own number; raises while `fails` says so of the rows of a call."""

    def __init__(self, fails: Callable[[list[int], int], bool]) -> None:
        self.fails = fails
        self.calls: list[list[int]] = []

    def __call__(self, examples: Sequence[Any], responses: Responses) -> Reward:
        rows = [example["n"] for example in examples]
        assert responses == {"solo": [f"text {row}" for row in rows]}
        self.calls.append(rows)
        if self.fails(rows, len(self.calls)):
            raise ValueError(f"call {len(self.calls)}")
        return Reward(team=[float(row) for row in rows], parts={"twice": [2.0 * row for row in rows]})


def answered(reward: Any, config: Any) -> tuple[list[int], Exception | None]:
    """The rows that have their number, every other one being NaN and not valid; and what went wrong."""
    given, failure = attempt(reward, ROWS, TEXTS, config)
    assert given.team is not None
    valid = given.valid if given.valid is not None else [True] * len(ROWS)
    for row, number in enumerate(given.team):
        assert number == row if valid[row] else math.isnan(number)
        assert not valid[row] or given.parts["twice"][row] == 2.0 * row
    return [row for row in range(len(ROWS)) if valid[row]], failure


@pytest.mark.parametrize("bad", [{5}, {0, 15}, {3, 4, 11}])
def test_rows_that_always_fail_are_the_only_ones_without_a_reward(bad: set[int], settings: Make) -> None:
    reward = Flaky(lambda rows, call: bool(bad & set(rows)))
    found, failure = answered(reward, settings(failure_budget=0.2))
    assert found == [row for row in range(16) if row not in bad]
    assert isinstance(failure, ValueError)
    assert all(sum(row in rows for rows in reward.calls) >= ATTEMPTS for row in bad)


def test_a_failure_that_passes_costs_no_row_and_divides_nothing(settings: Make) -> None:
    reward = Flaky(lambda rows, call: call < ATTEMPTS)
    assert answered(reward, settings()) == (list(range(16)), None)
    assert reward.calls == [list(range(16))] * ATTEMPTS


def test_a_failure_that_passes_while_rows_are_looked_for_costs_none_either(settings: Make) -> None:
    reward = Flaky(lambda rows, call: call < ATTEMPTS + 3)
    assert answered(reward, settings()) == (list(range(16)), None)


def test_a_reward_of_a_whole_batch_is_never_asked_about_a_part_of_it(settings: Make) -> None:
    reward = Flaky(lambda rows, call: 5 in rows)
    found, failure = answered(reward, settings(whole_batch=True))
    assert found == []
    assert failure is not None
    assert reward.calls == [list(range(16))] * ATTEMPTS


def test_beyond_the_budget_no_more_is_asked(settings: Make) -> None:
    reward = Flaky(lambda rows, call: True)
    found, _ = answered(reward, settings(failure_budget=0.1))
    assert found == []
    # The whole three times, 8 4 2 1 1, and a 2 of which the first row is one more than the run can bear.
    assert [len(rows) for rows in reward.calls] == [16, 16, 16, 8, 4, 2, 1, 1]


def test_numbers_for_too_few_rows_are_no_fault_of_a_row(settings: Make) -> None:
    calls: list[int] = []

    def mean_of_all(examples: Sequence[Any], responses: Responses) -> Reward:
        calls.append(len(examples))
        return Reward(team=[sum(example["n"] for example in examples) / len(examples)])

    given, failure = attempt(mean_of_all, ROWS, TEXTS, settings())
    assert given.valid == [False] * 16
    assert "must have one entry for each of the 16 rows, not 1" in str(failure)
    assert calls == [16] * ATTEMPTS, "a single row would have been taken at its word"


def test_a_row_alone_is_asked_as_often_as_a_batch(settings: Make) -> None:
    reward = Flaky(lambda rows, call: True)
    given, _ = attempt(reward, ROWS[:1], {"solo": TEXTS["solo"][:1]}, settings())
    assert given.valid == [False]
    assert len(reward.calls) == ATTEMPTS
