"""Environment rewards assigned to turns."""

from __future__ import annotations

import math

import pytest
from spoken import episode

from ippo_cli.rewards.contract import validate_reward
from ippo_cli.rewards.environment import EnvironmentReward
from ippo_cli.rewards.episodes import num_steps, turn_for_step

AGENTS = ["x", "o"]


@pytest.mark.parametrize(
    ("steps", "step", "turn"),
    [([1, 3], 0, 0), ([1, 3], 1, 0), ([1, 3], 2, 0), ([1, 3], 3, 1), ([1, 3], 9, 1), ([0], 5, 0), ([4], 0, 0)],
)
def test_turn_for_step(steps: list[int], step: int, turn: int) -> None:
    assert turn_for_step(steps, step) == turn


def test_alternating_players_are_rewarded_on_their_last_turn() -> None:
    """x moves at steps 0, 2 and 4, o at 1 and 3; x wins with its third move, so o loses at that step."""
    game = episode(
        *(("xo"[step % 2], step, "") for step in range(5)),
        rewards=[{}, {"o": 0.25}, {"x": 0.5, "o": 0.0}, {"o": -0.5}, {"x": 1.0, "o": -1.0}],
        parts={"won": 1.0},
    )
    found = EnvironmentReward(AGENTS)([game])
    assert found.agent_by_turn == {"x": [[0.0, 0.5, 1.0]], "o": [[0.25, -1.5]]}
    assert found.team_by_step == [[0.0, 0.25, 0.5, -0.5, 0.0]]
    assert found.parts == {"won": [1.0]}


def test_rewards_before_first_turn() -> None:
    early = episode(("x", 0, ""), ("o", 2, ""), rewards=[{"o": 3.0}, {"o": 4.0}, {"o": 5.0}])
    absent = episode(("x", 0, ""), rewards=[{"o": 7.0, "x": 1.0}])
    found = EnvironmentReward(AGENTS)([early, absent])
    assert found.agent_by_turn == {"x": [[0.0], [1.0]], "o": [[12.0], []]}
    assert found.team_by_step == [[3.0, 4.0, 5.0], [8.0]]


def test_unprocessed_step_has_zero_reward() -> None:
    """x acted at step 1, where the context of o was full: the episode was cut before the environment's step."""
    cut = episode(
        ("x", 0, ""), ("o", 0, ""), ("x", 1, ""), rewards=[{"x": 1.0}], terminated=False, truncation="context"
    )
    assert num_steps(cut) == 2
    found = validate_reward(EnvironmentReward(AGENTS)([cut]), AGENTS, [cut])
    assert found.team_by_step == [[1.0, 0.0]]
    assert found.agent_by_turn == {"x": [[1.0, 0.0]], "o": [[0.0]]}


def test_missing_part_is_nan() -> None:
    found = EnvironmentReward(["x"])([episode(("x", 0, ""), parts={"won": 1.0}), episode(("x", 0, ""), parts={"n": 2})])
    assert found.parts["won"][0] == 1.0
    assert found.parts["n"][1] == 2.0
    assert math.isnan(found.parts["won"][1])
    assert math.isnan(found.parts["n"][0])


def test_reward_of_unknown_agent_raises() -> None:
    stranger = episode(("x", 0, ""), rewards=[{"x": 1.0, "y": -1.0}])
    with pytest.raises(ValueError, match=r"rewards for unknown agents \['y'\] at step 0; the agents are \['o', 'x'\]"):
        EnvironmentReward(AGENTS)([stranger])
