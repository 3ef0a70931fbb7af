"""Which rows a reward is asked about again after it failed."""

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
    """Answers each row with its own number; raises while `fails` says so of the rows of a call."""

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
    """The rows that have their number, every other one being NaN and not valid; and what went wrong."""
    given, failure = call_reward(reward, EPISODES, ["solo"], config)
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
    assert all(sum(row in rows for rows in reward.calls) >= MAX_ATTEMPTS for row in bad)


def test_a_failure_that_passes_costs_no_row_and_divides_nothing(settings: Make) -> None:
    reward = Flaky(lambda rows, call: call < MAX_ATTEMPTS)
    assert answered(reward, settings()) == (list(range(16)), None)
    assert reward.calls == [list(range(16))] * MAX_ATTEMPTS


def test_a_failure_that_passes_while_rows_are_looked_for_costs_none_either(settings: Make) -> None:
    reward = Flaky(lambda rows, call: call < MAX_ATTEMPTS + 3)
    assert answered(reward, settings()) == (list(range(16)), None)


def test_a_reward_of_a_whole_batch_is_never_asked_about_a_part_of_it(settings: Make) -> None:
    reward = Flaky(lambda rows, call: 5 in rows)
    found, failure = answered(reward, settings(whole_batch=True))
    assert found == []
    assert failure is not None
    assert reward.calls == [list(range(16))] * MAX_ATTEMPTS


def test_beyond_the_budget_no_more_is_asked(settings: Make) -> None:
    reward = Flaky(lambda rows, call: True)
    found, _ = answered(reward, settings(failure_budget=0.1))
    assert found == []
    # The whole three times, 8 4 2 1 1, and a 2 of which the first row is one more than the run can bear.
    assert [len(rows) for rows in reward.calls] == [16, 16, 16, 8, 4, 2, 1, 1]


def test_numbers_for_too_few_rows_are_no_fault_of_a_row(settings: Make) -> None:
    calls: list[int] = []

    def mean_of_all(episodes: Sequence[Episode]) -> Reward:
        calls.append(len(episodes))
        return Reward(team=[sum(one.example["n"] for one in episodes) / len(episodes)])

    given, failure = call_reward(mean_of_all, EPISODES, ["solo"], settings())
    assert given.valid == [False] * 16
    assert "must have one entry for each of the 16 rows, not 1" in str(failure)
    assert calls == [16] * MAX_ATTEMPTS, "a single row would have been taken at its word"


def test_a_row_alone_is_asked_as_often_as_a_batch(settings: Make) -> None:
    reward = Flaky(lambda rows, call: True)
    given, _ = call_reward(reward, EPISODES[:1], ["solo"], settings())
    assert given.valid == [False]
    assert len(reward.calls) == MAX_ATTEMPTS


def test_a_failed_episode_is_never_asked_about_and_counts_as_a_failed_row(settings: Make) -> None:
    broken = ValueError("the world broke")
    rows = [replace(one, failure=broken if one.index in (2, 7) else None) for one in EPISODES]
    reward = Flaky(lambda rows, call: False)
    given, failure = call_reward(reward, rows, ["solo"], settings())
    assert failure is broken
    assert reward.calls == [[row for row in range(16) if row not in (2, 7)]]
    assert given.valid == [row not in (2, 7) for row in range(16)]
    assert given.team is not None
    assert [row for row in range(16) if math.isnan(given.team[row])] == [2, 7]


def test_a_reward_of_a_whole_batch_is_asked_about_the_episodes_that_there_are(settings: Make) -> None:
    rows = [replace(one, failure=ValueError("the world broke") if one.index == 3 else None) for one in EPISODES]
    reward = Flaky(lambda rows, call: False)
    given, _ = call_reward(reward, rows, ["solo"], settings(whole_batch=True))
    assert reward.calls == [[row for row in range(16) if row != 3]]
    assert given.valid == [row != 3 for row in range(16)]


def test_failed_episodes_say_nothing_about_the_reward_which_is_asked_about_the_others(settings: Make) -> None:
    rows = [replace(one, failure=ValueError("the world broke") if one.index < 8 else None) for one in EPISODES]
    reward = Flaky(lambda rows, call: False)
    given, failure = call_reward(reward, rows, ["solo"], settings(failure_budget=0.1))
    assert reward.calls == [[one.index for one in rows if one.index >= 8]]
    assert given.valid == [one.index >= 8 for one in rows], "told as many as there are, and not all"
    assert str(failure) == "the world broke"


def test_numbers_by_turn_are_put_together_from_parts_of_a_buffer(settings: Make) -> None:
    """Rows 0 to 3 have as many turns as their number says; 2 keeps failing."""
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
    """Answers row by row; those that `fails` names in a call stand in `failures`."""

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


def test_rows_that_fail_among_others_are_asked_about_again_without_the_others(settings: Make) -> None:
    reward = ByRow(lambda row, call: row in (3, 7) and (row == 3 or call < 3))
    found, failure = answered(reward, settings())
    assert found == [row for row in range(16) if row != 3]
    assert str(failure) == "row 3"
    assert reward.calls == [list(range(16)), [3, 7], [3, 7]]


def test_rows_of_a_reward_that_has_asked_again_itself_are_not_asked_about_again(settings: Make) -> None:
    reward = ByRow(lambda row, call: row == 3, final=True)
    found, failure = answered(reward, settings())
    assert len(found) == 15
    assert str(failure) == "row 3"
    assert len(reward.calls) == 1


def test_a_whole_batch_is_not_asked_about_in_parts_where_rows_of_it_fail(settings: Make) -> None:
    reward = ByRow(lambda row, call: row == 3)
    assert len(answered(reward, settings(whole_batch=True))[0]) == 15
    assert len(reward.calls) == 1
