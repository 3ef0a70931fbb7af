"""Validation of rewards against the contract, and its error messages."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch
from spoken import episode, spoken_once

from ippo_cli.rewards.contract import Reward, validate_reward

AGENTS = ("high", "low")
TWO = spoken_once([{}, {}], {"high": ["", ""], "low": ["", ""]})


def test_team_or_agent_numbers_suffice() -> None:
    assert validate_reward(Reward(team=[1, 2.5]), AGENTS, TWO).team == [1.0, 2.5]
    given = validate_reward(Reward(agent={"low": [1, 2], "high": [3, 4]}), AGENTS, TWO)
    assert given.agent == {"low": [1.0, 2.0], "high": [3.0, 4.0]}
    assert given.team is None


@pytest.mark.parametrize(
    "numbers",
    [(1, 0), [True, False], numpy.array([1.0, 0.0]), torch.tensor([1.0, 0.0]), [numpy.int64(1), torch.tensor(0)]],
)
def test_number_types_are_converted(numbers: Any) -> None:
    given = validate_reward(Reward(team=numbers, parts={"share": numbers}, valid=numbers), AGENTS, TWO)
    assert given.team == given.parts["share"] == [1.0, 0.0]
    assert given.valid == [True, False]


def test_none_becomes_nan() -> None:
    given = validate_reward(Reward(team=[None, 1.0], parts={"share": [None, 1.0]}), AGENTS, TWO)  # type: ignore[list-item]
    assert given.team is not None
    assert math.isnan(given.team[0])
    assert math.isnan(given.parts["share"][0])


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (Reward(), "must return 'team', 'agent', 'team_by_step' or 'agent_by_turn' numbers; it returned none of them"),
        (
            Reward(parts={"share": [1, 2]}),
            "must return 'team', 'agent', 'team_by_step' or 'agent_by_turn' numbers; it returned none of them",
        ),
        (Reward(team=[1.0]), "'team' must have one entry for each of the 2 rows, not 1"),
        (Reward(team=[]), "'team' must have one entry for each of the 2 rows, not 0"),
        (Reward(team=3.0), "'team' must have one entry for each of the 2 rows, not 3.0"),  # type: ignore[arg-type]
        (Reward(team="10"), "'team' must have one entry for each of the 2 rows, not 2"),
        (Reward(team=["1", "0"]), "'team' has '1' at row 0; a number is required"),  # type: ignore[list-item]
        (Reward(team=[1, [0]]), r"'team' has \[0\] at row 1; a number is required"),  # type: ignore[list-item]
        (Reward(agent={"low": [1, 2]}), r"must have numbers for \['high', 'low'\], not for \['low'\]"),
        (Reward(agent={"low": [1, 2], "high": [1, 2], "bob": [1, 2]}), "not for .*'bob'"),
        (Reward(agent={"low": [1, 2], "high": [1]}), r"'agent\[high\]' must have one entry for each of the 2 rows"),
        (Reward(team=[1, 2], valid=[True]), "'valid' must have one entry for each of the 2 rows, not 1"),
        (Reward(team=[1, 2], parts={"share": [1, 2, 3]}), r"'parts\[share\]' must have .* 2 rows, not 3"),
        (Reward(team=[1, 2], parts={"a/b": [1, 2]}), r"parts\[a/b\] is used in metric names"),
        (Reward(team=[1, 2], parts={"score": [1, 2]}), r"parts\[score\] is used in metric names"),
        (Reward(team=[1, 2], parts={"": [1, 2]}), r"parts\[\] is used in metric names"),
    ],
)
def test_contract_violations(reward: Reward, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate_reward(reward, AGENTS, TWO)


def test_agent_and_row_numbers_are_distinguished_by_name() -> None:
    """With two agents and two rows, a list of two is ambiguous, so numbers must have names."""
    per_row = validate_reward(Reward(team=[0.0, 1.0]), AGENTS, TWO)
    per_agent = validate_reward(Reward(agent={"high": [0.0, 0.0], "low": [1.0, 1.0]}), AGENTS, TWO)
    assert per_row.team == [0.0, 1.0]
    assert per_row.agent == {}
    assert per_agent.agent["high"] == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"'agent\[high\]' must have one entry for each of the 2 rows, not 1"):
        validate_reward(Reward(agent={"high": [0.0], "low": [1.0]}), AGENTS, TWO)


TALK = [episode(("high", 0, ""), ("low", 1, ""), ("high", 2, "")), episode(("low", 0, ""))]


def test_numbers_by_turn_and_by_step() -> None:
    by_turn: Any = {"high": [torch.tensor([1.0, 2.0]), []], "low": [(None,), numpy.array([4])]}
    given = validate_reward(Reward(team_by_step=[[1, True, 0], None], agent_by_turn=by_turn), AGENTS, TALK)  # type: ignore[list-item]
    assert given.team_by_step is not None
    assert given.team_by_step[0] == [1.0, 1.0, 0.0]
    assert math.isnan(given.team_by_step[1][0])
    assert given.agent_by_turn["high"] == [[1.0, 2.0], []]
    assert math.isnan(given.agent_by_turn["low"][0][0])
    assert given.agent_by_turn["low"][1] == [4.0]
    assert (given.team, given.agent) == (None, {})


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (Reward(team_by_step=[[0, 0, 0]]), "'team_by_step' must have one entry for each of the 2 rows, not 1"),
        (
            Reward(team_by_step=[[0, 0], [0]]),
            "'team_by_step' must have length 3 at row 0, one number for each of the episode's steps, not 2",
        ),
        (
            Reward(team_by_step=[1.0, 2.0]),  # type: ignore[list-item]
            r"'team_by_step' must have length 3 at row 0, one number for each of the episode's steps, not 1\.0",
        ),
        (
            Reward(team_by_step=torch.zeros(2)),  # type: ignore[arg-type]
            "'team_by_step' must have length 3 at row 0, one number for each of the episode's steps, not tensor",
        ),
        (
            Reward(agent_by_turn={"high": [[0, 0], []], "low": [[0], [0, 0]]}),
            r"'agent_by_turn\[low\]' must have length 1 at row 1, one number for each of .* turns of low, not 2",
        ),
        (Reward(agent_by_turn={"high": [[0, 0], []]}), r"'agent_by_turn' must have numbers for .*'low'"),
        (
            Reward(agent_by_turn={"high": [[0, "1"], []], "low": [[0], [0]]}),  # type: ignore[list-item]
            r"'agent_by_turn\[high\]\[0\]' has '1' at row 1; a number is required",
        ),
    ],
)
def test_nested_contract_violations(reward: Reward, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate_reward(reward, AGENTS, TALK)
