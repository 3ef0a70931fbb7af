"""Mean metrics of an update, also by agent and turn, compared with hand-computed values."""

from __future__ import annotations

import pytest
import torch
from test_per_turn_metrics import buffer

from ippo_cli.algorithms.losses import Loss
from ippo_cli.reporting.accumulator import MetricAccumulator
from ippo_cli.reporting.metrics import is_documented
from ippo_cli.types import Minibatch

ENTROPY = torch.tensor([[1.0, 2.0, 90.0, 3.0], [4.0, 90.0, 90.0, 90.0], [5.0, 90.0, 6.0, 7.0]])


def micro_batch() -> tuple[Loss, Minibatch]:
    """Two rows of `low` and one of `high`; the last token of each is masked."""
    rollout, _, targets = buffer()
    mask = rollout.response_mask.clone()
    mask[0, 3] = mask[2, 3] = False
    batch = Minibatch(
        rollout=rollout,
        targets=targets,
        num_tokens=5,
        num_sequences=3,
        num_values=5,
        num_value_sequences=3,
        agent=torch.tensor([0, 0, 1]),
    )
    per_token = {"entropy": ENTROPY, "ratio": 10 * ENTROPY}
    return Loss(total=torch.zeros(()), mask=mask, per_token=per_token, weight=2.0), batch


def tallied(learner: str, agents: tuple[str, ...], turns: dict[str, int]) -> dict[str, float]:
    tally = MetricAccumulator.for_learner(learner, agents, turns)
    loss, batch = micro_batch()
    for first in (True, False):
        tally.add("policy", loss, batch, first_epoch=first, first_step=first)
        tally.tokens += 10
        tally.first_epoch_tokens += 10 if first else 0
    return tally.means()


def test_agent_and_turn_means_match_hand_computation() -> None:
    found = tallied("pair", ("low", "high"), {"low": 1, "high": 3})
    assert found == pytest.approx(
        {
            "pair/policy/entropy": (1 + 2 + 4 + 5 + 6) / 5,
            "pair/policy/ratio": 10 * (1 + 2 + 4 + 5 + 6) / 5,  # of the first epoch
            "low/policy/entropy": (1 + 2 + 4) / 3,
            "low/policy/ratio": 70 / 3,
            "low/policy/entropy/turn/1": (1 + 2 + 4) / 3,
            "low/policy/ratio/turn/1": 70 / 3,
            "high/policy/entropy": (5 + 6) / 2,
            "high/policy/ratio": 55.0,
            "high/policy/entropy/turn/1": 5.0,
            "high/policy/ratio/turn/1": 50.0,
            "high/policy/entropy/turn/2": 6.0,
            "high/policy/ratio/turn/2": 60.0,
            "high/policy/entropy/turn/3": torch.nan,
            "high/policy/ratio/turn/3": torch.nan,
        },
        nan_ok=True,
    )
    assert all(is_documented(key) for key in found)


def test_single_agent_with_one_turn_has_only_learner_means() -> None:
    assert tallied("low", ("low",), {}) == {"low/policy/entropy": 3.6, "low/policy/ratio": 36.0}


def test_masked_tokens_are_excluded() -> None:
    tally = MetricAccumulator.for_learner("pair", ("low", "high"), {"low": 2, "high": 2})
    loss, batch = micro_batch()
    loss.per_token["entropy"][~loss.mask] = torch.nan
    tally.add("policy", loss, batch, first_epoch=True, first_step=True)
    tally.add("policy", loss, batch.mask_all(), first_epoch=False, first_step=False)
    tally.tokens = tally.first_epoch_tokens = 10
    assert tally.means()["high/policy/entropy/turn/2"] == 6.0
