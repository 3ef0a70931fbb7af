"""Scores of walks, computed by hand."""

from __future__ import annotations

import pytest

from ippo_cli.rewards.grid import GridReward

WALK = {"size": 4, "start": "a1", "goal": "c2"}  # two to the right, one up


@pytest.mark.parametrize(
    ("horizontal", "vertical", "score", "exact", "wasted"),
    [
        ("rr", "u", 1.0, 1.0, 0.0),
        ("rr", "", 2 / 3, 0.0, 0.0),
        ("", "", 0.0, 0.0, 0.0),
        ("rrl", "u", 2 / 3 - 2 * 0.05, 0.0, 2.0),  # there and back: two wasted steps
        ("rrrl", "u", 1.0 - 2 * 0.05, 0.0, 2.0),
        ("lrr", "u", 1.0 - 0.05, 0.0, 1.0),  # a wall on the left
        ("rr", "du", 1.0 - 0.05, 0.0, 1.0),  # a wall below
        ("rrrrr", "u", 2 / 3 - 4 * 0.05, 0.0, 4.0),  # one step too far, and two steps into the wall
        ("rxr", "u", 1.0 - 0.05, 0.0, 1.0),  # not a move
        ("u", "rr", 1.0, 1.0, 0.0),  # independent of the agent
        ("", "uuu", 0.0, 0.0, 4.0),  # farther than at the start; scores are at least 0
    ],
)
def test_score_of_walk(horizontal: str, vertical: str, score: float, exact: float, wasted: float) -> None:
    given = GridReward(0.05)([WALK], {"horizontal": [horizontal], "vertical": [vertical]})
    assert given.team == pytest.approx([score])
    assert (given.parts["exact"], given.parts["wasted"]) == ([exact], [wasted])
    assert given.agent == {}


def test_agents_alternate() -> None:
    # d u d u next to the wall below ends one step up; d d u u would end two steps up.
    taken = GridReward(0.0)([{"size": 3, "start": "a1", "goal": "a3"}], {"one": ["dd"], "other": ["uu"]})
    assert taken.team == pytest.approx([0.5])


def test_rows_are_independent() -> None:
    rows = [WALK, {"size": 4, "start": "d4", "goal": "d3"}]
    assert GridReward(0.05)(rows, {"solo": ["rru", "d"]}).team == [1.0, 1.0]
