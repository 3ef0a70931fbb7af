"""States that get a Monte-Carlo value: before turns, lines and every n tokens, within a limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from ippo_cli.lab.value_states import Keys, ValueStateChooser, ValueStates
from ippo_cli.rollout.branches import State
from ippo_cli.types import Completion, Episode, Turn

STOP = 0
TEXTS = {1: "a", 2: "b", 3: "\n", 4: "c.\n\n", 5: "  ", 6: "d\ne"}


class Letters:
    """A tokenizer with one text per token; the stop token has none."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(TEXTS.get(token, "") for token in ids)


def turn(step: int, ids: Sequence[int], agent: str = "x") -> Turn:
    numbers = torch.zeros(len(ids))
    completion = Completion(
        ids=torch.tensor(ids, dtype=torch.long), logprobs=numbers, behavior_logprobs=numbers, text="", finished=True
    )
    return Turn(agent=agent, step=step, observation="", prompt=[9], completion=completion)


def episode(*turns: Turn, partners: frozenset[str] = frozenset()) -> Episode:
    return Episode(
        example={},
        index=0,
        turns=list(turns),
        rewards=[],
        final={},
        last_observations={},
        terminated=True,
        unfinished=frozenset(),
        ended=frozenset(),
        truncation="",
        failure=None,
        parts={},
        partners=partners,
    )


def places(*turns: Turn, limit: int | None = None, every: int | None = None, states: str = "lines") -> list[Any]:
    """Turn and position of each state of agent x in one episode."""
    settings = Keys(continuations=2, states=ValueStates(states), every=every, max_states=limit)
    chooser = ValueStateChooser(settings, Letters())  # type: ignore[arg-type]
    found = chooser.choose([episode(), episode(*turns)], [1], "x")
    assert all((state.episode, state.agent) == (1, "x") for state in found)
    return [(state.turn, state.position) for state in found]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 2, STOP], [0]),
        ([1, 3, 2, STOP], [0, 2]),
        ([1, 3, 3, 2, 3, STOP], [0, 2, 5]),  # a blank line ends no line; what follows a break does not matter
        ([4, 1, 4, 2, 1], [0, 1, 3]),  # a break inside a token
        ([1, 3, 5, 2], [0, 2]),
        ([6, 1, STOP], [0, 1]),
        ([3, 1], [0]),
        ([1, 3], [0]),
        ([], []),
    ],
)
def test_states_before_lines(ids: list[int], expected: list[int]) -> None:
    assert places(turn(0, ids)) == [(0, position) for position in expected]


def test_states_before_turns_and_every_n_tokens() -> None:
    turns = turn(0, [1, 3, 2, 1, 2]), turn(0, [1, 3, 1], "y"), turn(1, [1]), turn(2, [1, 2])
    assert places(*turns, states="turns") == [(0, 0), (1, 0), (2, 0)]
    assert places(*turns, states="tokens", every=2) == [(0, 0), (0, 2), (0, 4), (1, 0), (2, 0)]
    assert places(*turns, states="tokens", every=1)[:6] == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0)]


@pytest.mark.parametrize("states", ["lines", "tokens"])
def test_states_depend_on_earlier_tokens_only(states: str) -> None:
    """A choice that depends on an action would make its value a biased baseline."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        ids = torch.randint(0, 7, (8,), generator=generator).tolist()
        changed = [*ids[:4], *torch.randint(0, 7, (4,), generator=generator).tolist()]
        found, others = (
            places(turn(0, tokens), states=states, every=2 if states == "tokens" else None, limit=3)
            for tokens in (ids, changed)
        )
        assert [place for place in found if place[1] <= 4] == [place for place in others if place[1] <= 4]


@pytest.mark.parametrize(
    ("limit", "expected"), [(1, [0]), (2, [0, 1]), (6, [0, 1, 2, 3, 4, 5]), (9, [0, 1, 2, 3, 4, 5])]
)
def test_limit_selects_the_first_states(limit: int, expected: list[int]) -> None:
    found = places(turn(0, [1] * 6), states="tokens", every=1, limit=limit)
    assert found == [(0, position) for position in expected]


def test_turns_of_snapshots_have_no_state() -> None:
    settings = Keys(continuations=2, states=ValueStates.turns, every=None, max_states=None)
    chooser = ValueStateChooser(settings, Letters())  # type: ignore[arg-type]
    rows = [episode(turn(0, [1]), partners=frozenset({"x"})), episode(turn(0, [1]))]
    assert chooser.choose(rows, [0, 1], "x") == [State(1, "x", 0, 0)]
