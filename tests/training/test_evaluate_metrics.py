"""What an evaluation makes of the reward's numbers."""

from __future__ import annotations

import math

import torch

from ippo_cli.rewards.contract import Reward
from ippo_cli.training.evaluate import _metrics
from ippo_cli.types import Rollout


def four_rows() -> Rollout:
    ids, mask = torch.zeros(4, 1, dtype=torch.long), torch.ones(4, 1, dtype=torch.bool)
    numbers = torch.zeros(4, 1)
    return Rollout(
        prompt_ids=ids,
        prompt_mask=mask,
        response_ids=ids,
        response_mask=mask,
        turn=ids,
        logprobs=numbers,
        behavior_logprobs=numbers,
        finished=torch.tensor([True, True, True, False]),
        texts=["a"] * 4,
    )


def test_a_part_is_the_mean_over_the_rows_that_it_applies_to() -> None:
    nothing = math.nan
    given = Reward(
        team=[1.0, 0.0, 1.0, nothing],
        agent={},
        parts={"exact": [1.0, nothing, nothing, nothing], "never": [nothing] * 4},
        valid=None,
    )
    numbers = torch.tensor(given.team)
    found = _metrics(given, {"solo": numbers}, numbers.isnan(), {"solo": four_rows()}, 4)
    assert found["exact"] == 1.0
    assert math.isnan(found["never"])
    assert found["score"] == found["solo/score"] == 2 / 3
    assert found["failed_share"] == 0.25
    assert (found["solo/response_length"], found["solo/truncated_share"]) == (1.0, 0.25)
