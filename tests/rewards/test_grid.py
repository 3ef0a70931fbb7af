"""Hand-worked walks."""

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
        ("rrl", "u", 2 / 3 - 2 * 0.05, 0.0, 2.0),  # there and back: both steps were for nothing
        ("rrrl", "u", 1.0 - 2 * 0.05, 0.0, 2.0),
        ("lrr", "u", 1.0 - 0.05, 0.0, 1.0),  # a wall on the left
        ("rr", "du", 1.0 - 0.05, 0.0, 1.0),  # and below
        ("rrrrr", "u", 2 / 3 - 4 * 0.05, 0.0, 4.0),  # one too far undoes another, and two steps end at the wall
        ("rxr", "u", 1.0 - 0.05, 0.0, 1.0),  # no move
        ("u", "rr", 1.0, 1.0, 0.0),  # whoever makes them
        ("", "uuu", 0.0, 0.0, 4.0),  # farther than at the start, and no score is negative
    ],
)
def test_a_walk_scores_by_where_it_ends_less_its_detours(
    horizontal: str, vertical: str, score: float, exact: float, wasted: float
) -> None:
    given = GridReward(0.05)([WALK], {"horizontal": [horizontal], "vertical": [vertical]})
    assert given.team == pytest.approx([score])
    assert (given.parts["exact"], given.parts["wasted"]) == ([exact], [wasted])
    assert given.agent == {}


def test_agents_move_by_turns() -> None:
    # d u d u against the wall below is one step up in the end; d d u u would be two.
    taken = GridReward(0.0)([{"size": 3, "start": "a1", "goal": "a3"}], {"one": ["dd"], "other": ["uu"]})
    assert taken.team == pytest.approx([0.5])


def test_rows_are_kept_apart() -> None:
    rows = [WALK, {"size": 4, "start": "d4", "goal": "d3"}]
    assert GridReward(0.05)(rows, {"solo": ["rru", "d"]}).team == [1.0, 1.0]
