"""From a forward pass and a micro-batch to one number to minimise, and what to log about it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ippo_cli.config.schema import AlgorithmConfig, Objective
from ippo_cli.formulas import aggregate, clipped_policy_loss, kl_estimate, masked_sum, on_policy_loss, value_loss
from ippo_cli.models.actor import PolicyOutput
from ippo_cli.types import Minibatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A micro-batch's share of the step's loss, already divided by the step's global counts."""

    total: Tensor  # scalar
    sums: dict[str, Tensor] = field(default_factory=dict)  # per-token quantities summed over the loss mask
    maxima: dict[str, Tensor] = field(default_factory=dict)


def policy_objective(output: PolicyOutput, batch: Minibatch, config: AlgorithmConfig, response_budget: int) -> Loss:
    """Policy loss, entropy bonus and KL term of one micro-batch."""
    rollout, targets, mask = batch.rollout, batch.targets, batch.targets.loss_mask
    new, old = output.logprobs, rollout.logprobs
    if config.objective is Objective.on_policy:
        per_token = on_policy_loss(new, targets.advantages)
    else:
        per_token = clipped_policy_loss(
            new, old, targets.advantages, clip_range_low=config.clip_range_low,
            clip_range_high=config.clip_range_high, dual_clip=config.dual_clip,
        )  # fmt: skip
    assert output.entropy is not None
    total = per_token - config.entropy_coef * output.entropy if config.entropy_coef else per_token
    sums = {"loss": masked_sum(per_token.detach(), mask), "entropy": masked_sum(output.entropy.detach(), mask)}
    if config.kl.loss.coef:
        kl = kl_estimate(new, targets.ref_logprobs, estimator=config.kl.loss.estimator)
        total = total + config.kl.loss.coef * kl
        sums["kl_loss"] = masked_sum(kl.detach(), mask)
    with torch.no_grad():
        ratio = (new - old).clamp(-20.0, 20.0).exp()
        outside = (ratio < 1.0 - config.clip_range_low) | (ratio > 1.0 + config.clip_range_high)
        sums["ratio"] = masked_sum(ratio, mask)
        sums["approx_kl"] = masked_sum(kl_estimate(old, new, estimator="k3"), mask)
        sums["clip_fraction"] = masked_sum(outside.float(), mask)
        deviation = torch.where(mask, (ratio - 1.0).abs(), 0.0).max()
    return Loss(total=_aggregated(total, batch, config, response_budget), sums=sums, maxima={"ratio": deviation})


def value_objective(new_values: Tensor, batch: Minibatch, config: AlgorithmConfig, response_budget: int) -> Loss:
    """`value_loss_coef` times the (clipped) squared error of one micro-batch."""
    targets = batch.targets
    per_token = value_loss(new_values, targets.values, targets.returns, value_clip_range=config.value_clip_range)
    total = _aggregated(config.value_loss_coef * per_token, batch, config, response_budget)
    return Loss(total=total, sums={"loss": masked_sum(per_token.detach(), targets.loss_mask)})


def _aggregated(per_token: Tensor, batch: Minibatch, config: AlgorithmConfig, response_budget: int) -> Tensor:
    return aggregate(
        per_token, batch.targets.loss_mask, mode=config.loss_aggregation,
        num_tokens=batch.num_tokens, num_sequences=batch.num_sequences, norm=response_budget,
    )  # fmt: skip
