"""Our side of comparisons with several peers, as functions of a case."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from published.cases import Case, Side, graded
from torch import Tensor

from ippo_cli.algorithms.return_moments import ReturnMoments
from ippo_cli.formulas import (
    adaptive_kl_step,
    aggregate,
    cispo_loss,
    clip_logratio,
    clipped_policy_loss,
    gae,
    group_normalized,
    kl_estimate,
    masked_policy_loss,
    masked_whiten,
    outside_trust_region,
    overlong_fraction,
    place_scores,
    pool_logratio,
    selected_logprobs,
    value_loss,
)

NORM = 37  # of seq-mean-token-sum-norm
HORIZON = 100
Choice = Callable[[Case], Tensor]


def per_token(c: Case) -> Tensor:
    """Return the advantage of every token."""
    return c.advantages


def per_row(c: Case) -> Tensor:
    """Return one advantage for all tokens of a row."""
    return c.on_tokens(c.row_advantages)


def outcome_rewards(c: Case) -> Tensor:
    """Place each row's score on its last action token."""
    return place_scores(c.score[:, None], c.mask, torch.where(c.mask, 0, -1))


def aggregated(loss: Tensor, c: Case, mode: str, *, mask: Tensor | None = None, all_rows: bool = False) -> Tensor:
    """Aggregate over a batch that is the whole optimizer step; `all_rows` also counts empty rows."""
    mask = c.mask if mask is None else mask
    rows = len(mask) if all_rows else c.num_sequences
    return aggregate(loss, mask, mode=mode, num_tokens=int(mask.sum()), num_sequences=rows, norm=NORM)


def policy(
    mode: str,
    advantages: Choice = per_token,
    *,
    level: str = "token",
    pooling: str = "mean",
    dual: bool = False,
    kl: bool = False,
    units: Choice | None = None,
    all_rows: bool = False,
    upper: Callable[[Case], float] = lambda c: c.high,
) -> Side:
    """The clipped policy loss and its gradient; `units` selects the tokens of the average (default: all)."""

    def loss(new: Tensor, c: Case) -> Tensor:
        logratio = pool_logratio(new, c.old, c.mask, c.turn, level=level, pooling=pooling)
        each = clipped_policy_loss(
            new,
            c.old,
            advantages(c),
            clip_range_low=c.low,
            clip_range_high=upper(c),
            dual_clip=c.dual if dual else None,
            logratio=logratio,
        )
        if kl:
            each = each + c.coef * kl_estimate(new, c.ref, estimator="k3")
        return aggregated(each, c, mode, mask=units(c) if units else None, all_rows=all_rows)

    return lambda c: graded(lambda new: loss(new, c), c.new)


def cispo(mode: str, advantages: Choice = per_token, *, low: Callable[[Case], float] = lambda c: c.low) -> Side:
    """CISPO's loss and its gradient."""

    def loss(new: Tensor, c: Case) -> Tensor:
        logratio = pool_logratio(new, c.old, c.mask, c.turn, level="token", pooling="sum")
        each = cispo_loss(new, logratio, advantages(c), clip_range_low=low(c), clip_range_high=c.high)
        return aggregated(each, c, mode)

    return lambda c: graded(lambda new: loss(new, c), c.new)


def gmpo(advantages: Choice, *, all_rows: bool = False, bounded: bool = True) -> Side:
    """GMPO's loss and its gradient; the case's clip ranges are those of log-ratios, from `-low` to `high`.

    With `bounded=False` the geometric mean of the ratios has no limit.
    """

    def loss(new: Tensor, c: Case) -> Tensor:
        low, high = -math.expm1(-c.low), math.expm1(c.high)
        clipped = clip_logratio(c.kept(new - c.old), advantages(c), low=low, high=high)
        if bounded:
            pooled = pool_logratio(clipped, torch.zeros_like(clipped), c.mask, c.turn, level="sequence", pooling="mean")
            each = masked_policy_loss(pooled, advantages(c), c.mask)
        else:
            pooled = c.kept(clipped).sum(dim=1, keepdim=True) / c.m.sum(dim=1, keepdim=True).clamp(min=1.0)
            each = -advantages(c) * pooled.exp()
        return aggregated(each, c, "seq-mean-token-mean", all_rows=all_rows)

    return lambda c: graded(lambda new: loss(new, c), c.new)


def as_probabilities(c: Case, *, rare: bool = False) -> Case:
    """Return the case with log-probabilities of at most 0, which a change of the probability needs.

    `rare`: the tokens were rarer under the old policy, instead of under the new one.
    """
    other = -c.new.abs()
    return replace(c, new=c.old, old=other) if rare else replace(c, new=other)


def gradient_of_masked(region: str | None, *, cap: bool = False, bounded: bool = True, rare: bool = False) -> Side:
    """The gradient of the ratio's loss, without tokens outside of the trust region.

    `region=None`: a mask on both sides of the ratio (SAO); otherwise without updates that leave the region (DPPO). With
    `bounded=False` a log-ratio above 20 keeps its gradient.
    """

    def loss(new: Tensor, c: Case) -> Tensor:
        logratio = pool_logratio(new, c.old, c.mask, c.turn, level="token", pooling="sum")
        below, above = outside_trust_region(new, c.old, logratio, region=region or "ratio", low=c.low, high=c.high)
        outside = below | above if region is None else torch.where(c.advantages > 0, above, below)
        if bounded:
            each = masked_policy_loss(logratio, c.advantages, ~outside, ratio_cap=c.dual if cap else None)
        else:
            weight = logratio.detach().exp().clamp(max=c.dual if cap else None)
            each = torch.where(outside, 0.0, -c.advantages * weight * new)
        return aggregated(each, c, "token-mean")

    def side(c: Case) -> Tensor:
        c = as_probabilities(c, rare=rare)
        return graded(lambda new: loss(new, c), c.new)[1]

    return side


def overlong_limits(c: Case) -> tuple[int, int]:
    """The token limit of a response, and the length of the last part of it, in which a penalty grows."""
    limit = c.mask.shape[1]
    return limit, 1 + int(c.low * limit)


def overlong(c: Case) -> Tensor:
    """DAPO's penalty of each response: the sum over its turns, at most 1 for each."""
    limit, ramp = overlong_limits(c)
    return -c.coef * overlong_fraction(c.mask, c.turn, limit=limit, ramp=ramp / limit).sum(dim=1)


def values(clip: Callable[[Case], float | None]) -> Side:
    """The value loss over tokens and its gradient."""

    def loss(new: Tensor, c: Case) -> Tensor:
        return aggregated(value_loss(new, c.values, c.returns, value_clip_range=clip(c)), c, "token-mean")

    return lambda c: graded(lambda new: loss(new, c), c.new_values)


def kl(estimator: str) -> Side:
    """The KL of each token and its gradient."""
    return lambda c: graded(lambda new: kl_estimate(new, c.ref, estimator=estimator), c.new)


def tokens(c: Case) -> tuple[Tensor, Tensor]:
    """Advantages and returns over tokens."""
    return gae(c.rewards, c.values, c.mask, gamma=c.gamma, gae_lambda=c.gae_lambda)


def less_group_mean_whitened(group: Choice) -> Side:
    """REINFORCE++ with a baseline."""
    return lambda c: masked_whiten(c.on_tokens(group_normalized(c.score, group(c), scale_by_std=False)), c.mask)


def with_epsilon(epsilon: float) -> Side:
    """GRPO over consecutive groups with another constant added to the std than our 1e-6."""

    def rows(c: Case) -> Tensor:
        std = c.score.view(-1, c.block).std(dim=1).repeat_interleave(c.block)
        return group_normalized(c.score, c.blocks) * (std + 1e-6) / (std + epsilon)

    return rows


def chosen(part: int, temperature: float) -> Side:
    """Log-probabilities (part 0) or entropies (part 1) of the cases' logits, and their gradients."""

    def read(logits: Tensor, c: Case) -> Tensor:
        return selected_logprobs(logits, lambda hidden: hidden, c.ids, temperature=temperature, chunk_tokens=7)[part]

    return lambda c: graded(lambda logits: read(logits, c), c.logits)


def adaptive(c: Case) -> Tensor:
    """The KL coefficient after a batch."""
    rows, current = len(c.score), float(c.score[0].abs())
    coef = adaptive_kl_step(c.coef, current, target=c.cap, horizon=HORIZON, num_samples=rows)
    return torch.tensor(coef, dtype=torch.float64)


def adapted(controller: type, c: Case) -> Tensor:
    """The KL coefficient after a batch, from a peer's controller (Ziegler et al.)."""
    one = controller(c.coef, c.cap, HORIZON)
    one.update(float(c.score[0].abs()), len(c.score))
    return torch.tensor(float(one.value), dtype=torch.float64)


def beta(c: Case) -> float:
    """The weight of earlier buffers in a critic's moments."""
    return min(c.gae_lambda, 0.95)


def buffers(c: Case) -> tuple[Tensor, ...]:
    """Returns of three buffers, `[n]` each."""
    return c.returns[c.mask], 3.0 * c.values[c.mask], 0.5 * c.new_values[c.mask] - 2.0


def moments(start: Callable[[Case], ReturnMoments] = lambda c: ReturnMoments()) -> Side:
    """Mean and standard deviation of returns after each buffer, `[3]` each."""

    def after_each(c: Case) -> tuple[Tensor, ...]:
        found, current = [], start(c)
        for returns in buffers(c):
            current = current.update(returns, torch.ones_like(returns, dtype=torch.bool), beta(c))
            found.append((current.mean, current.std))
        return torch.tensor(found, dtype=torch.float64).unbind(1)

    return after_each
