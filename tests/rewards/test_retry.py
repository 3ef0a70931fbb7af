"""Retries of failed reward calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from spoken import episode, spoken_once

from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.retry import MAX_ATTEMPTS
from ippo_cli.rewards.score import call_reward
from ippo_cli.types import Episode

Make = Callable[..., Any]
ROWS = [{"n": row} for row in range(16)]
EPISODES = spoken_once(ROWS, {"solo": [f"text {row}" for row in range(16)]})


class Flaky:
    """Returns each row's number; raises if `fails(rows, number of the call)`."""

    def __init__(self, fails: Callable[[list[int], int], bool]) -> None:
        self.fails = fails
        self.calls: list[list[int]] = []

    def __call__(self, episodes: Sequence[Episode]) -> Reward:
        rows = [one.example["n"] for one in episodes]
        assert [one.turns[0].completion.text for one in episodes] == [f"text {row}" for row in rows]
        self.calls.append(rows)
        if self.fails(rows, len(self.calls)):
            raise ValueError(f"call {len(self.calls)}")
        return Reward(team=[float(row) for row in rows], parts={"twice": [2.0 * row for row in rows]})


def answered(reward: Any, config: Any) -> tuple[list[int], Exception | None]:
    """The valid rows, after checking that all others are NaN; and the failure."""
    given, failure = call_reward(reward, EPISODES, ["solo"], config)
    assert given.team is not None
    valid = given.valid if given.valid is not None else [True] * len(ROWS)
    for row, number in enumerate(given.team):
        assert number == row if valid[row] else math.isnan(number)
        assert not valid[row] or given.parts["twice"][row] == 2.0 * row
    return [row for row in range(len(ROWS)) if valid[row]], failure


@pytest.mark.parametrize("bad", [{5}, {0, 15}, {3, 4, 11}])
def test_only_failing_rows_have_no_reward(bad: set[int], settings: Make) -> None:
    reward = Flaky(lambda rows, call: bool(bad & set(rows)))
    found, failure = answered(reward, settings(failure_budget=0.2))
    assert found == [row for row in range(16) if row not in bad]
    assert isinstance(failure, ValueError)
    assert all(sum(row in rows for rows in reward.calls) >= MAX_ATTEMPTS for row in bad)


def test_transient_failure_retries_whole_batch(settings: Make) -> None:
    reward = Flaky(lambda rows, call: call < MAX_ATTEMPTS)
    assert answered(reward, settings()) == (list(range(16)), None)
    assert reward.calls == [list(range(16))] * MAX_ATTEMPTS


def test_transient_failure_during_bisection(settings: Make) -> None:
    reward = Flaky(lambda rows, call: call < MAX_ATTEMPTS + 3)
    assert answered(reward, settings()) == (list(range(16)), None)


def test_whole_batch_is_not_split(settings: Make) -> None:
    reward = Flaky(lambda rows, call: 5 in rows)
    found, failure = answered(reward, settings(whole_batch=True))
    assert found == []
    assert failure is not None
    assert reward.calls == [list(range(16))] * MAX_ATTEMPTS


def test_no_calls_after_failure_budget(settings: Make) -> None:
    reward = Flaky(lambda rows, call: True)
    found, _ = answered(reward, settings(failure_budget=0.1))
    assert found == []
    # The whole batch three times, then 8 4 2 1 1: the second failed row exceeds the budget of 0.1 * 17 rows.
    assert [len(rows) for rows in reward.calls] == [16, 16, 16, 8, 4, 2, 1, 1]


def test_length_error_is_not_bisected(settings: Make) -> None:
    calls: list[int] = []

    def mean_of_all(episodes: Sequence[Episode]) -> Reward:
        calls.append(len(episodes))
        return Reward(team=[sum(one.example["n"] for one in episodes) / len(episodes)])

    given, failure = call_reward(mean_of_all, EPISODES, ["solo"], settings())
    assert given.valid == [False] * 16
    assert "must have one entry for each of the 16 rows, not 1" in str(failure)
    assert calls == [16] * MAX_ATTEMPTS, "a call for a single row would have succeeded"


def test_single_row_is_retried(settings: Make) -> None:
    reward = Flaky(lambda rows, call: True)
    given, _ = call_reward(reward, EPISODES[:1], ["solo"], settings())
    assert given.valid == [False]
    assert len(reward.calls) == MAX_ATTEMPTS


def test_failed_episodes_are_not_scored(settings: Make) -> None:
    broken = ValueError("the world broke")
    rows = [replace(one, failure=broken if one.index in (2, 7) else None) for one in EPISODES]
    reward = Flaky(lambda rows, call: False)
    given, failure = call_reward(reward, rows, ["solo"], settings())
    assert failure is broken
    assert reward.calls == [[row for row in range(16) if row not in (2, 7)]]
    assert given.valid == [row not in (2, 7) for row in range(16)]
    assert given.team is not None
    assert [row for row in range(16) if math.isnan(given.team[row])] == [2, 7]


def test_whole_batch_without_failed_episodes(settings: Make) -> None:
    rows = [replace(one, failure=ValueError("the world broke") if one.index == 3 else None) for one in EPISODES]
    reward = Flaky(lambda rows, call: False)
    given, _ = call_reward(reward, rows, ["solo"], settings(whole_batch=True))
    assert reward.calls == [[row for row in range(16) if row != 3]]
    assert given.valid == [row != 3 for row in range(16)]


def test_failed_episodes_do_not_use_failure_budget(settings: Make) -> None:
    rows = [replace(one, failure=ValueError("the world broke") if one.index < 8 else None) for one in EPISODES]
    reward = Flaky(lambda rows, call: False)
    given, failure = call_reward(reward, rows, ["solo"], settings(failure_budget=0.1))
    assert reward.calls == [[one.index for one in rows if one.index >= 8]]
    assert given.valid == [one.index >= 8 for one in rows], "only rows of failed episodes are not valid"
    assert str(failure) == "the world broke"


def test_merge_numbers_by_turn(settings: Make) -> None:
    """Row n has n turns; row 2 always fails."""
    rows = [episode(*(("solo", step, "") for step in range(row)), index=row) for row in range(4)]

    def reward(episodes: Sequence[Episode]) -> Reward:
        if any(one.index == 2 for one in episodes):
            raise ValueError("row 2")
        by_turn = [[one.index + 0.25 * turn for turn in range(one.index)] for one in episodes]
        return Reward(agent_by_turn={"solo": by_turn}, team_by_step=[[1.0] * one.index for one in episodes])

    given, _ = call_reward(reward, rows, ["solo"], settings())
    assert given.valid == [True, True, False, True]
    assert (given.team, given.agent) == (None, {})
    assert given.team_by_step is not None
    for numbers, expected in ((given.agent_by_turn["solo"], [3.0, 3.25, 3.5]), (given.team_by_step, [1.0] * 3)):
        assert [len(own) for own in numbers] == [0, 1, 2, 3]
        assert all(math.isnan(number) for number in numbers[2])
        assert list(numbers[3]) == expected


class ByRow:
    """Scores row by row; rows with `fails(row, number of the call)` are in `failures`."""

    def __init__(self, fails: Callable[[int, int], bool], *, final: bool = False) -> None:
        self.fails, self.final = fails, final
        self.calls: list[list[int]] = []

    def __call__(self, episodes: Sequence[Episode]) -> Reward:
        rows = [one.example["n"] for one in episodes]
        self.calls.append(rows)
        failed = {place: ValueError(f"row {row}") for place, row in enumerate(rows) if self.fails(row, len(self.calls))}
        numbers = [math.nan if place in failed else float(row) for place, row in enumerate(rows)]
        return Reward(
            team=numbers, parts={"twice": [2 * number for number in numbers]}, failures=failed, final=self.final
        )


def test_failed_rows_are_retried_alone(settings: Make) -> None:
    reward = ByRow(lambda row, call: row in (3, 7) and (row == 3 or call < 3))
    found, failure = answered(reward, settings())
    assert found == [row for row in range(16) if row != 3]
    assert str(failure) == "row 3"
    assert reward.calls == [list(range(16)), [3, 7], [3, 7]]


def test_final_failures_are_not_retried(settings: Make) -> None:
    reward = ByRow(lambda row, call: row == 3, final=True)
    found, failure = answered(reward, settings())
    assert len(found) == 15
    assert str(failure) == "row 3"
    assert len(reward.calls) == 1


def test_whole_batch_with_failed_rows_is_not_retried(settings: Make) -> None:
    reward = ByRow(lambda row, call: row == 3)
    assert len(answered(reward, settings(whole_batch=True))[0]) == 15
    assert len(reward.calls) == 1
