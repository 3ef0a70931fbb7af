"""What an environment paid, on the turns that earned it."""

from __future__ import annotations

import math

import pytest
from spoken import episode

from ippo_cli.rewards.contract import validate_reward
from ippo_cli.rewards.credit import num_steps, turn_for_step
from ippo_cli.rewards.environment import EnvironmentReward

AGENTS = ["x", "o"]


@pytest.mark.parametrize(
    ("steps", "step", "turn"),
    [([1, 3], 0, 0), ([1, 3], 1, 0), ([1, 3], 2, 0), ([1, 3], 3, 1), ([1, 3], 9, 1), ([0], 5, 0), ([4], 0, 0)],
)
def test_a_payment_is_for_the_last_turn_by_then_or_the_first(steps: list[int], step: int, turn: int) -> None:
    assert turn_for_step(steps, step) == turn


def test_players_who_take_turns_are_paid_on_their_own_last_turn() -> None:
    """x moves at 0, 2 and 4, o at 1 and 3; x wins with its third move, and o loses by that."""
    game = episode(
        *(("xo"[step % 2], step, "") for step in range(5)),
        rewards=[{}, {"o": 0.25}, {"x": 0.5, "o": 0.0}, {"o": -0.5}, {"x": 1.0, "o": -1.0}],
        parts={"won": 1.0},
    )
    found = EnvironmentReward(AGENTS)([game])
    assert found.agent_by_turn == {"x": [[0.0, 0.5, 1.0]], "o": [[0.25, -1.5]]}
    assert found.team_by_step == [[0.0, 0.25, 0.5, -0.5, 0.0]]
    assert found.parts == {"won": [1.0]}


def test_what_is_paid_before_the_first_turn_falls_on_it_and_what_nobody_earned_is_left_out() -> None:
    early = episode(("x", 0, ""), ("o", 2, ""), rewards=[{"o": 3.0}, {"o": 4.0}, {"o": 5.0}])
    absent = episode(("x", 0, ""), rewards=[{"o": 7.0, "x": 1.0}])
    found = EnvironmentReward(AGENTS)([early, absent])
    assert found.agent_by_turn == {"x": [[0.0], [1.0]], "o": [[12.0], []]}
    assert found.team_by_step == [[3.0, 4.0, 5.0], [8.0]]


def test_a_turn_that_the_environment_has_not_answered_is_a_step_without_payment() -> None:
    """x wrote at step 1, and the context of o ended there: the episode was cut before the environment heard of it."""
    cut = episode(
        ("x", 0, ""), ("o", 0, ""), ("x", 1, ""), rewards=[{"x": 1.0}], terminated=False, truncation="context"
    )
    assert num_steps(cut) == 2
    found = validate_reward(EnvironmentReward(AGENTS)([cut]), AGENTS, [cut])
    assert found.team_by_step == [[1.0, 0.0]]
    assert found.agent_by_turn == {"x": [[1.0, 0.0]], "o": [[0.0]]}


def test_a_part_that_an_environment_does_not_tell_has_no_number() -> None:
    found = EnvironmentReward(["x"])([episode(("x", 0, ""), parts={"won": 1.0}), episode(("x", 0, ""), parts={"n": 2})])
    assert found.parts["won"][0] == 1.0
    assert found.parts["n"][1] == 2.0
    assert math.isnan(found.parts["won"][1])
    assert math.isnan(found.parts["n"][0])


def test_payments_to_somebody_else_are_no_agents_and_are_refused() -> None:
    stranger = episode(("x", 0, ""), rewards=[{"x": 1.0, "y": -1.0}])
    with pytest.raises(ValueError, match=r"the environment paid \['y'\] at step 0, and the agents are \['o', 'x'\]"):
        EnvironmentReward(AGENTS)([stranger])
