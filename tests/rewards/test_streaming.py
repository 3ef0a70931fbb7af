"""Streaming of finished episodes gives the same rewards as one call at the end."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from spoken import spoken_once

from ippo_cli.config.errors import ConfigError
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.score import call_reward
from ippo_cli.rewards.streaming import StreamingReward, streaming_reward
from ippo_cli.types import Episode

EXAMPLES = [{"number": number} for number in range(7)]
TEXTS = {"low": [f"l{row}" for row in range(7)], "high": [f"h{row}" for row in range(7)]}
EPISODES = spoken_once(EXAMPLES, TEXTS)
AGENTS = list(TEXTS)


def score_episodes(episodes: Sequence[Episode]) -> Reward:
    """A reward that checks that examples and responses belong together."""
    numbers = [one.example["number"] for one in episodes]
    for agent, letter in (("low", "l"), ("high", "h")):
        assert [one.turns_of_agent(agent)[0].completion.text for one in episodes] == [
            f"{letter}{number}" for number in numbers
        ]
    return Reward(
        team=[float(number) for number in numbers],
        agent={"low": [number + 0.25 for number in numbers], "high": [number + 0.5 for number in numbers]},
        parts={"twice": [2.0 * number for number in numbers]} | ({"odd": [1.0] * len(numbers)} if 3 in numbers else {}),
        valid=[number != 5 for number in numbers],
    )


def all_said(early: StreamingReward, order: Sequence[int] = range(7)) -> None:
    for row in order:
        early.on_finished([row], [EPISODES[row]])


def answered(reward: Any, early: StreamingReward, config: Any) -> Reward:
    """The reward of the buffer with the streamed parts."""
    given, failure = call_reward(reward, EPISODES, AGENTS, config, early.wait_for_rewards)
    assert failure is None
    return given


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("order", [range(7), [6, 2, 4, 0, 1, 5, 3]])
def test_result_is_independent_of_order_and_parts(
    rows: int, order: Sequence[int], settings: Callable[..., Any]
) -> None:
    early = StreamingReward(score_episodes, AGENTS, rows)
    all_said(early, order)
    found, expected = answered(score_episodes, early, settings()), score_episodes(EPISODES)
    assert found.team == expected.team
    assert found.agent == expected.agent
    assert found.valid == expected.valid
    assert found.parts["twice"] == expected.parts["twice"]
    # A part that only some calls return is NaN in the other rows.
    assert found.parts["odd"][3] == 1.0
    assert all(number == 1.0 or math.isnan(number) for number in found.parts["odd"])


def test_starts_early_and_scores_each_row_once(settings: Callable[..., Any]) -> None:
    asked: list[int] = []
    begun = threading.Event()

    def noted(episodes: Sequence[Episode]) -> Reward:
        asked.extend(one.example["number"] for one in episodes)
        begun.set()
        return score_episodes(episodes)

    early = StreamingReward(noted, AGENTS, 2)
    early.on_finished([4], [EPISODES[4]])
    assert not begun.wait(0.05), "one finished episode is less than a batch"
    early.on_finished([1], [EPISODES[1]])
    assert begun.wait(5.0)
    answered(noted, early, settings())
    assert sorted(asked) == list(range(7))


def test_only_failed_parts_are_retried(settings: Callable[..., Any]) -> None:
    asked: list[list[int]] = []

    def failing_once(episodes: Sequence[Episode]) -> Reward:
        asked.append([one.example["number"] for one in episodes])
        if asked[-1] == [2, 3] and asked.count([2, 3]) == 1:
            raise OSError("the judge is away")
        return score_episodes(episodes)

    early = StreamingReward(failing_once, AGENTS, 2)
    all_said(early)
    assert answered(failing_once, early, settings()).team == [float(row) for row in range(7)]
    assert sorted(asked) == [[0, 1], [2, 3], [2, 3], [4, 5], [6]]


def test_failing_row_does_not_affect_its_part(settings: Callable[..., Any]) -> None:
    asked: list[list[int]] = []

    def unable(episodes: Sequence[Episode]) -> Reward:
        asked.append([one.example["number"] for one in episodes])
        if 2 in asked[-1]:
            raise ValueError("row 2")
        return score_episodes(episodes)

    early = StreamingReward(unable, AGENTS, 4)
    all_said(early)
    given, failure = call_reward(unable, EPISODES, AGENTS, settings(), early.wait_for_rewards)
    assert str(failure) == "row 2"
    assert given.valid == [True, True, False, True, True, False, True]  # the reward marks 5 as not valid
    assert given.team is not None
    assert [row for row in range(7) if math.isnan(given.team[row])] == [2]
    assert asked.count([4, 5, 6]) == 1
    assert sum(5 in part for part in asked) == 1


def test_no_retries_after_failure_budget(settings: Callable[..., Any]) -> None:
    asked: list[list[int]] = []

    def away(episodes: Sequence[Episode]) -> Reward:
        asked.append([one.example["number"] for one in episodes])
        raise OSError("the judge is away")

    early = StreamingReward(away, AGENTS, 1)
    all_said(early)
    given, _ = call_reward(away, EPISODES, AGENTS, settings(failure_budget=0.0), early.wait_for_rewards)
    assert given.valid == [False] * 7
    assert asked == [[row] for row in range(7)] + [[0]] * 2


def test_contract_violation_is_a_failure(settings: Callable[..., Any]) -> None:
    def short(episodes: Sequence[Episode]) -> Reward:
        return Reward(team=[1.0])

    early = StreamingReward(short, AGENTS, 7)
    all_said(early)
    given, failure = call_reward(short, EPISODES, AGENTS, settings(), early.wait_for_rewards)
    assert "one entry for each of the 7 rows" in str(failure)
    assert given.valid == [False] * 7


def test_ippo_errors_in_thread_are_raised(settings: Callable[..., Any]) -> None:
    def refusing(episodes: Sequence[Episode]) -> Reward:
        raise ConfigError("task.agents.low.answer='{x}'", "names a field", "name another")

    early = StreamingReward(refusing, AGENTS, 3)
    all_said(early)
    with pytest.raises(ConfigError):
        call_reward(refusing, EPISODES, AGENTS, settings(), early.wait_for_rewards)


def test_disabled_streaming() -> None:
    with streaming_reward(score_episodes, AGENTS, 0) as early:
        assert early is None


def test_failed_episodes_are_not_streamed(settings: Callable[..., Any]) -> None:
    asked: list[list[int]] = []

    def noted(episodes: Sequence[Episode]) -> Reward:
        asked.append([one.example["number"] for one in episodes])
        return score_episodes(episodes)

    rows = [replace(one, failure=OSError("away") if one.index in (1, 6) else None) for one in EPISODES]
    early = StreamingReward(noted, AGENTS, 2)
    early.on_finished(range(7), rows)
    given, failure = call_reward(noted, rows, AGENTS, settings(), early.wait_for_rewards)
    assert str(failure) == "away"
    assert sorted(asked) == [[0, 2], [3, 4], [5]]
    assert given.valid == [True, False, True, True, True, False, False]  # the reward marks 5 as not valid
