"""Formulas reject tensors of a wrong shape or type in tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import nn

from ippo_cli import formulas

X, MASK, TURN = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.long)
WIDE, ROWS, LABELS = torch.ones(2, 4), torch.ones(2), torch.zeros(2, dtype=torch.long)
HEAD = nn.Linear(5, 7)
BINS = formulas.ValueBins(3, 0.0, 1.0)
CLIP = {"clip_range_low": 0.2, "clip_range_high": 0.2}
GAE = {"gamma": 1.0, "gae_lambda": 1.0}
CHUNKS = {"temperature": 1.0, "chunk_tokens": 4}
COUNTS = {"mode": "token-mean", "num_tokens": 6, "num_sequences": 2}

WRONG: dict[str, Callable[[], object]] = {
    "masked_sum": lambda: formulas.masked_sum(X, MASK[:, :2]),
    "masked_mean": lambda: formulas.masked_mean(X, MASK[:, :2]),
    "masked_var": lambda: formulas.masked_var(X, torch.ones(3, 3)),
    "masked_whiten": lambda: formulas.masked_whiten(X, MASK[:, :2]),
    "gae": lambda: formulas.gae(X, WIDE, MASK, **GAE),
    "turn_gae": lambda: formulas.turn_gae(X, X, MASK, TURN.float(), turn_value="first", **GAE),
    "segment_gae": lambda: formulas.segment_gae(X, X, MASK, MASK[:1], **GAE),
    "pool_values": lambda: formulas.pool_values(ROWS, MASK, TURN, turn_value="first"),
    "turn_ends": lambda: formulas.turn_ends(MASK, TURN[:1]),
    "reward_to_go": lambda: formulas.reward_to_go(X, WIDE > 0, gamma=1.0),
    "place_scores": lambda: formulas.place_scores(ROWS, MASK, TURN),
    "group_normalized": lambda: formulas.group_normalized(X, LABELS),
    "leave_one_out": lambda: formulas.leave_one_out(ROWS, ROWS),
    "score_to_go": lambda: formulas.score_to_go(ROWS, gamma=1.0),
    "alternative_baseline": lambda: formulas.alternative_baseline(X, MASK),
    "turn_credit": lambda: formulas.turn_credit(X, WIDE, MASK),
    "telescope_credit": lambda: formulas.telescope_credit(ROWS, gamma=1.0),
    "role_baseline": lambda: formulas.role_baseline(X, start=0.0, decay=0.5),
    "on_policy_loss": lambda: formulas.on_policy_loss(X, WIDE),
    "pool_logratio": lambda: formulas.pool_logratio(X, WIDE, MASK, TURN, level="turn", pooling="sum"),
    "clipped_policy_loss": lambda: formulas.clipped_policy_loss(X, X, ROWS, **CLIP),
    "masked_policy_loss": lambda: formulas.masked_policy_loss(X, WIDE, MASK),
    "cispo_loss": lambda: formulas.cispo_loss(X, WIDE, X, **CLIP),
    "outside_trust_region": lambda: formulas.outside_trust_region(X, WIDE, X, region="tv", low=0.1, high=0.1),
    "clip_logratio": lambda: formulas.clip_logratio(X, WIDE, low=0.1, high=0.1),
    "overlong_fraction": lambda: formulas.overlong_fraction(MASK, TURN[:1], limit=4, ramp=0.5),
    "behavior_weights": lambda: formulas.behavior_weights(X, X, WIDE, level="token", cap=2.0),
    "capability_advantages": lambda: formulas.capability_advantages(ROWS, LABELS, X),
    "cross_agent_weights": lambda: formulas.cross_agent_weights(X, X, WIDE, exponent=2.0, clip_range=0.2),
    "step_logratio": lambda: formulas.step_logratio(X, WIDE, MASK, TURN, steps=1, pooling="sum"),
    "sequential_factor": lambda: formulas.sequential_factor(ROWS, MASK, TURN, cap=2.0),
    "equal_norm_weights": lambda: formulas.equal_norm_weights(X, limit=2.0),
    "gradnorm_weights": lambda: formulas.gradnorm_weights(ROWS, torch.ones(3), ROWS, alpha=1.0, rate=0.1, limit=2.0),
    "bradley_terry": lambda: formulas.bradley_terry(X),
    "shapley_values": lambda: formulas.shapley_values(ROWS),
    "ValueBins": lambda: formulas.ValueBins("3", 0.0, 1.0),  # type: ignore[arg-type]
    "bin_probabilities": lambda: formulas.bin_probabilities(TURN, BINS),
    "hl_gauss_loss": lambda: formulas.hl_gauss_loss(TURN, X, BINS),
    "expected_values": lambda: formulas.expected_values(TURN, BINS),
    "disagreement_limits": lambda: formulas.disagreement_limits([1.0], 0.2, 0.2),  # type: ignore[arg-type]
    "rescale_output": lambda: formulas.rescale_output(X, 1.0, (0.0, 1.0), (0.0, 1.0)),  # type: ignore[arg-type]
    "value_loss": lambda: formulas.value_loss(X, X, ROWS[:, None]),
    "kl_estimate": lambda: formulas.kl_estimate(X, WIDE, estimator="k1"),
    "full_kl": lambda: formulas.full_kl(torch.ones(2, 5), HEAD, torch.ones(3, 5), HEAD, **CHUNKS),
    "selected_logprobs": lambda: formulas.selected_logprobs(torch.ones(2, 5), HEAD, TURN, **CHUNKS),
    "router_loss": lambda: formulas.router_loss([ROWS], top_k=1),
    "aggregate": lambda: formulas.aggregate(X, WIDE, **COUNTS),
    "adaptive_kl_step": lambda: formulas.adaptive_kl_step(0.1, X, target=1.0, horizon=10.0, num_samples=1),
    "reweight": lambda: formulas.reweight(X, method="pow", power=1.0, generator=None),
}


@pytest.mark.parametrize("name", formulas.__all__)
def test_wrong_shapes_rejected(name: str) -> None:
    with pytest.raises(TypeCheckError):
        WRONG[name]()
