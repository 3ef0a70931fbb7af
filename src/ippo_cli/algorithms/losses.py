"""Losses of a micro-batch from the outputs of a forward pass, with their logged quantities."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ippo_cli.algorithms.advantages import turn_values
from ippo_cli.config.schema import AlgorithmConfig, Credit, Objective, ValueUnit
from ippo_cli.formulas import (
    aggregate,
    clipped_policy_loss,
    hl_gauss_loss,
    kl_estimate,
    masked_sum,
    on_policy_loss,
    pool_logratio,
    value_loss,
)
from ippo_cli.models.actor import PolicyOutput
from ippo_cli.models.critic import ValueHead
from ippo_cli.types import Minibatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A micro-batch's share of the step's loss, already divided by the step's global counts."""

    total: Tensor  # scalar
    mask: Tensor  # [b, R] bool: where it has terms
    per_token: dict[str, Tensor]  # [b, R], detached: logged as means over the mask
    maxima: dict[str, Tensor] = field(default_factory=dict)
    weight: float = 1.0  # tokens per entry of the mask: sums are divided by tokens

    @property
    def sums(self) -> dict[str, Tensor]:
        """Sums of the logged quantities over the mask."""
        return {name: masked_sum(numbers, self.mask) * self.weight for name, numbers in self.per_token.items()}


def policy_objective(output: PolicyOutput, batch: Minibatch, config: AlgorithmConfig, response_budget: int) -> Loss:
    """Policy loss, entropy bonus, KL term and router loss of one micro-batch."""
    rollout, targets, mask = batch.rollout, batch.targets, batch.targets.loss_mask
    new, old = output.logprobs, rollout.logprobs
    logratio = pool_logratio(
        new,
        old,
        rollout.response_mask,
        rollout.turn,
        level=config.ratio_level.value,
        pooling="sum" if config.ratio_pooling is None else config.ratio_pooling.value,
    )
    logged: dict[str, Tensor] = {}
    if config.objective is Objective.on_policy:
        per_token = on_policy_loss(new, targets.advantages)
    else:
        assert config.clip_range_low is not None
        assert config.clip_range_high is not None
        low, high = config.clip_range_low, config.clip_range_high
        per_token = clipped_policy_loss(
            new,
            old,
            targets.advantages,
            clip_range_low=low,
            clip_range_high=high,
            dual_clip=config.dual_clip,
            logratio=logratio,
        )
        ratio = logratio.detach().exp()
        logged["clip_fraction"] = ((ratio < 1.0 - low) | (ratio > 1.0 + high)).float()
    per_token = per_token * targets.behavior_weights
    assert output.entropy is not None
    total = per_token
    if config.entropy_coef:
        total = total - config.entropy_coef * output.entropy * targets.entropy_mask
    logged |= {"loss": per_token.detach(), "entropy": output.entropy.detach()}
    if config.kl.loss.coef:
        if config.kl.loss.estimator == "full":
            assert output.full_kl is not None
            kl = output.full_kl
        else:
            kl = kl_estimate(new, targets.ref_logprobs, estimator=config.kl.loss.estimator)
        total = total + config.kl.loss.coef * kl
        logged["kl_loss"] = kl.detach()
    with torch.no_grad():
        ratio = logratio.exp()
        logged["ratio"] = ratio
        logged["approx_kl"] = kl_estimate(old, new, estimator="k3")
        deviation = torch.where(mask, (ratio - 1.0).abs(), 0.0).max()
    loss = _aggregate_loss(total, mask, batch.num_tokens, batch.num_sequences, config, response_budget)
    if output.router_loss is not None:  # no sum over tokens: weighted by the micro-batch's share of them
        loss = loss + config.router_loss_coef * output.router_loss * (mask.sum() / max(batch.num_tokens, 1))
        logged["router_loss"] = output.router_loss.detach().expand(mask.shape)
    return Loss(total=loss, mask=mask, per_token=logged, maxima={"ratio": deviation})


def value_objective(
    outputs: Tensor,
    final_outputs: Tensor,
    batch: Minibatch,
    config: AlgorithmConfig,
    response_budget: int,
    head: ValueHead | None = None,
) -> Loss:
    """`value_loss_coef` times the (clipped, squared or Huber) error or the cross-entropy of one micro-batch.

    `outputs`, `final_outputs`: of the critic's head before each token and after all. Errors are of normalised values.
    """
    targets, mask = batch.targets, batch.targets.value_mask
    # With credit=auto turns may equal tokens: then there are as many values as tokens.
    if config.value_unit is ValueUnit.turn and (config.credit is Credit.turn or batch.num_values < batch.num_tokens):
        outputs = turn_values(outputs, final_outputs, batch.rollout, config)
    values, returns = targets.values, targets.returns
    if head is not None:
        values, returns = head.normalize(values), head.normalize(returns)
    if head is None or head.bins is None:
        per_value = value_loss(
            outputs, values, returns, value_clip_range=config.value_clip_range, huber_delta=config.huber_delta
        )
    else:
        per_value = hl_gauss_loss(outputs, returns, head.bins)
    assert config.value_loss_coef is not None
    total = _aggregate_loss(
        config.value_loss_coef * per_value, mask, batch.num_values, batch.num_sequences, config, response_budget
    )
    weight = batch.num_tokens / max(batch.num_values, 1)  # gives the mean per value
    return Loss(total=total, mask=mask, per_token={"loss": per_value.detach()}, weight=weight)


def _aggregate_loss(
    loss: Tensor, mask: Tensor, num_tokens: int, num_sequences: int, config: AlgorithmConfig, response_budget: int
) -> Tensor:
    return aggregate(
        loss,
        mask,
        mode=config.loss_aggregation,
        num_tokens=num_tokens,
        num_sequences=num_sequences,
        norm=response_budget,
    )
