"""Losses of a micro-batch from the outputs of a forward pass, with their logged quantities."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ippo_cli.algorithms.advantages import turn_values
from ippo_cli.algorithms.user_objectives import UserLoss
from ippo_cli.config.schema import AlgorithmConfig, ClipLevel, Credit, Objective, TrustRegion, ValueUnit
from ippo_cli.formulas import (
    aggregate,
    cispo_loss,
    clip_logratio,
    clipped_policy_loss,
    hl_gauss_loss,
    kl_estimate,
    masked_policy_loss,
    masked_sum,
    on_policy_loss,
    outside_trust_region,
    pool_logratio,
    value_loss,
)
from ippo_cli.formulas.masked import keep
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


def policy_objective(
    output: PolicyOutput,
    batch: Minibatch,
    config: AlgorithmConfig,
    response_budget: int,
    user_loss: UserLoss | None = None,
) -> Loss:
    """Policy loss, entropy bonus, KL term and router loss of one micro-batch.

    Both log-probabilities of a ratio are those before sampling filters, also with `ratio_base=sampler`: the recorded
    `logprobs` of the sampler. Those of a filtered distribution would differ from the policy's before any update.
    """
    rollout, targets, mask = batch.rollout, batch.targets, batch.targets.loss_mask
    new, old = output.logprobs, rollout.logprobs
    logratio = _pool(new, old, batch, config)
    logged: dict[str, Tensor] = {}
    if user_loss is not None:
        per_token, logged = user_loss.compute(new, old, targets.advantages, mask)
    elif config.objective == Objective.on_policy:
        per_token = on_policy_loss(new, targets.advantages)
    else:
        per_token, is_outside = _ratio_loss(new, old, logratio, batch, config)
        logged["clip_fraction"] = is_outside.float()
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
    if config.positive_nll.coef:
        positive = mask & targets.positive[:, None]
        counts = {"num_tokens": batch.num_positive_tokens, "num_sequences": 0}
        loss = loss + config.positive_nll.coef * aggregate(-new, positive, mode="token-mean", **counts)
        logged |= {"nll_loss": torch.where(positive, -new.detach(), 0.0), "positive_fraction": positive.float()}
    if output.router_loss is not None:  # no sum over tokens: weighted by the micro-batch's share of them
        loss = loss + config.router_loss_coef * output.router_loss * (mask.sum() / max(batch.num_tokens, 1))
        logged["router_loss"] = output.router_loss.detach().expand(mask.shape)
    return Loss(total=loss, mask=mask, per_token=logged, maxima={"ratio": deviation})


def _pool(new: Tensor, old: Tensor, batch: Minibatch, config: AlgorithmConfig) -> Tensor:
    """Log of the ratio of each token's unit."""
    return pool_logratio(
        new,
        old,
        batch.rollout.response_mask,
        batch.rollout.turn,
        level=config.ratio_level.value,
        pooling="sum" if config.ratio_pooling is None else config.ratio_pooling.value,
    )


def _ratio_loss(
    new: Tensor, old: Tensor, logratio: Tensor, batch: Minibatch, config: AlgorithmConfig
) -> tuple[Tensor, Tensor]:
    """The loss of an objective with a ratio, and the tokens outside of its trust region: both `[b, R]`."""
    assert config.clip_range_low is not None
    assert config.clip_range_high is not None
    low, high, advantages = config.clip_range_low, config.clip_range_high, batch.targets.advantages
    by_token = config.clip_level is ClipLevel.token
    measured = keep(new - old, batch.rollout.response_mask) if by_token else logratio
    below, above = outside_trust_region(new, old, measured, region=config.trust_region.value, low=low, high=high)
    outside = below | above
    if config.objective == Objective.cispo:
        return cispo_loss(new, logratio, advantages, clip_range_low=low, clip_range_high=high), outside
    if config.objective == Objective.mask:
        return masked_policy_loss(logratio, advantages, ~outside, ratio_cap=config.ratio_cap), outside
    if by_token:
        clipped = clip_logratio(measured, advantages, low=low, high=high)
        pooled = _pool(clipped, torch.zeros_like(clipped), batch, config)
        return masked_policy_loss(pooled, advantages, batch.rollout.response_mask), outside
    if config.trust_region is not TrustRegion.ratio:
        leaves = torch.where(advantages > 0, above, below)  # tokens that the update would move further away
        return masked_policy_loss(logratio, advantages, ~leaves, ratio_cap=config.ratio_cap), outside
    loss = clipped_policy_loss(
        new,
        old,
        advantages,
        clip_range_low=low,
        clip_range_high=high,
        dual_clip=config.dual_clip,
        logratio=logratio,
    )
    return loss, outside


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
    logged: dict[str, Tensor] = {}
    if head is None or head.bins is None:
        per_value = value_loss(
            outputs, values, returns, value_clip_range=config.value_clip_range, huber_delta=config.huber_delta
        )
    else:
        per_value = hl_gauss_loss(outputs, returns, head.bins)
        logged["clamped_fraction"] = ((returns < head.bins.low) | (returns > head.bins.high)).float()
    assert config.value_loss_coef is not None
    total = _aggregate_loss(
        config.value_loss_coef * per_value, mask, batch.num_values, batch.num_value_sequences, config, response_budget
    )
    weight = batch.num_tokens / max(batch.num_values, 1)  # gives the mean per value
    return Loss(total=total, mask=mask, per_token={"loss": per_value.detach()} | logged, weight=weight)


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
