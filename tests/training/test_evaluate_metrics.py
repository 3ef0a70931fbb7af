"""What an evaluation makes of the reward's numbers."""

from __future__ import annotations

import math

import pytest
import torch
from spoken import episode

from ippo_cli.rewards.contract import Reward
from ippo_cli.training.evaluate import _by_turn, _metrics
from ippo_cli.types import Episode


def four_episodes() -> list[Episode]:
    """One turn each; the last one was cut."""
    return [episode(("solo", 0, "a"), unfinished=frozenset({"solo"} if number == 3 else ())) for number in range(4)]


def test_a_part_is_the_mean_over_the_rows_that_it_applies_to() -> None:
    nothing = math.nan
    given = Reward(
        team=[1.0, 0.0, 1.0, nothing],
        agent={},
        parts={"exact": [1.0, nothing, nothing, nothing], "never": [nothing] * 4},
        valid=None,
    )
    numbers = torch.tensor(given.team)
    found, _ = _metrics(given, {"solo": numbers}, numbers.isnan(), four_episodes(), 4)
    assert found["exact"] == 1.0
    assert math.isnan(found["never"])
    assert found["score"] == found["solo/score"] == 2 / 3
    assert found["failed_share"] == 0.25
    assert (found["solo/response_length"], found["solo/truncated_share"]) == (0.0, 0.25)


def test_episodes_in_which_an_agent_did_not_speak_are_not_counted_as_cut() -> None:
    played = [episode(("low", 0, "a"), terminated=False, truncation="environment") for _ in range(3)]
    played.append(episode(("high", 0, "a"), ("low", 1, "b")))
    numbers = {name: torch.zeros(4) for name in ("low", "high", "mute")}
    found, _ = _metrics(Reward(team=[0.0] * 4), numbers, torch.zeros(4).bool(), played, 4)
    assert (found["low/truncated_share"], found["high/truncated_share"]) == (0.75, 0.0)
    assert math.isnan(found["mute/truncated_share"])


def test_numbers_of_a_held_out_turn_are_of_the_episodes_that_had_it_and_scores_of_those_that_are_valid() -> None:
    played = [
        episode(("low", 0, "", "", True, 4), ("high", 1, ""), ("low", 2, "", "", False, 2)),
        episode(("low", 0, "", "", False, 1)),
        episode(("low", 0, "", "", True, 1), ("low", 1, "", "", True, 6)),
    ]
    scores = torch.tensor([[0.5, 1.0], [0.25, 9.0], [9.0, 9.0]])
    assert _by_turn(played, "low", scores, torch.tensor([True, True, False]), 3) == pytest.approx(
        {
            "response_length/turn/1": 2.0,
            "cut_share/turn/1": 1 / 3,
            "score/turn/1": 0.375,
            "response_length/turn/2": 4.0,
            "cut_share/turn/2": 0.5,
            "score/turn/2": 1.0,
            "response_length/turn/3": math.nan,
            "cut_share/turn/3": math.nan,
            "score/turn/3": math.nan,
        },
        nan_ok=True,
    )
