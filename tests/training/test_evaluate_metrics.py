"""What an evaluation makes of the reward's numbers."""

from __future__ import annotations

import math

import torch
from spoken import episode

from ippo_cli.rewards.contract import Reward
from ippo_cli.training.evaluate import _metrics
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
