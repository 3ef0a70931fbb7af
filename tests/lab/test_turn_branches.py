"""Candidates at each turn of an episode: the order of turns, groups, and the episode that is followed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from ippo_cli.lab.turn_branches import BranchedEpisodes, branch_episodes
from ippo_cli.rollout.branches import BranchEpisodes, State
from ippo_cli.types import Completion, Episode, Turn


def turn(agent: str, step: int, text: str) -> Turn:
    numbers = torch.zeros(1)
    completion = Completion(
        ids=torch.tensor([1]), logprobs=numbers, behavior_logprobs=numbers, text=text, finished=True
    )
    return Turn(agent=agent, step=step, observation="", prompt=[7], completion=completion)


def episode(*texts: str, failure: Exception | None = None) -> Episode:
    """Agents `a` and `b` answer one after another."""
    return Episode(
        example={},
        index=0,
        turns=[turn("ab"[step % 2], step, text) for step, text in enumerate(texts)],
        rewards=[{}] * len(texts),
        final={},
        last_observations={},
        terminated=True,
        unfinished=frozenset(),
        ended=frozenset(),
        truncation="",
        failure=failure,
        parts={},
    )


def branch(first: Sequence[Episode], returns: dict[str, float], *, best: bool, agents: str = "ab") -> BranchedEpisodes:
    """Two candidates per turn: a branch replaces a digit by the next one, and all later turns by 0.

    The return of a candidate is that of its episode's texts.
    """

    def play(episodes: Sequence[Episode], states: Sequence[State], count: int) -> BranchEpisodes:
        counts.append(count)
        played = []
        for state in states:
            texts = [own.text for own in episodes[state.episode].turns]
            place = 2 * state.turn + "ab".index(state.agent)
            later = ["0"] * (len(texts) - place - 1)
            played += [episode(*texts[:place], str(int(texts[place]) + 1 + number), *later) for number in range(count)]
        return BranchEpisodes(episodes=played, has_diverged=[False] * len(played), num_tokens=len(played))

    counts: list[int] = []

    def value(agent: str, episodes: Sequence[Episode], states: Sequence[State]) -> list[float]:
        assert all(state.agent == agent for state in states)
        return [returns.get("".join(own.text for own in one.turns), 0.0) for one in episodes[: len(states)]]

    found = branch_episodes(first, list(agents), 2, play, value, follows_best=best)
    assert counts[0] == 1
    assert set(counts[1:]) <= {2 if best else 1}
    return found


def describe_groups(found: BranchedEpisodes) -> list[tuple[str, list[str], list[float]]]:
    return [
        (f"{group.state.agent}{group.state.turn}", [own.text for own in group.turns], group.returns)
        for group in found.groups
    ]


def test_episode_remains_at_random() -> None:
    found = branch([episode("1", "5", "3")], {"153": 1.0, "200": 9.0, "160": 2.0, "154": 4.0}, best=False)
    assert describe_groups(found) == [
        ("a0", ["1", "2"], [1.0, 9.0]),
        ("b0", ["5", "6"], [1.0, 2.0]),
        ("a1", ["3", "4"], [1.0, 4.0]),
    ]
    assert ["".join(own.text for own in one.turns) for one in found.episodes] == ["153"]
    assert found.num_tokens == 3


def test_best_branch_takes_the_place_of_the_episode() -> None:
    found = branch([episode("1", "5", "3")], {"153": 1.0, "200": 9.0, "210": 7.0, "220": 8.0, "221": 8.0}, best=True)
    assert describe_groups(found) == [
        ("a0", ["1", "2"], [1.0, 9.0]),
        ("b0", ["1", "2"], [7.0, 8.0]),  # new candidates: the turn of the best episode is no sample
        ("a1", ["1", "2"], [8.0, 0.0]),
    ]
    assert ["".join(own.text for own in one.turns) for one in found.episodes] == ["221"]


def test_frozen_agents_failures_and_unknown_returns() -> None:
    first = [episode("1", "5"), episode("4", failure=ValueError("no")), episode("7")]
    found = branch(first, {"15": math.nan, "20": -1.0}, best=True, agents="a")
    assert [(group.state.episode, group.state.agent) for group in found.groups] == [(0, "a"), (2, "a")]
    assert found.groups[0].returns == pytest.approx([math.nan, -1.0], nan_ok=True)
    assert ["".join(own.text for own in one.turns) for one in found.episodes] == ["20", "4", "7"]
