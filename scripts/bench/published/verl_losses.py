"""verl's losses, KL terms, log-probabilities and weights beside our formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import verl.trainer.ppo.core_algos as core
import verl.utils.torch_functional as functional
from published.cases import EPSILON, Case, Comparison, Side, aggregated, graded, joined
from torch import Tensor
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.config import ActorConfig

from ippo_cli.formulas import (
    aggregate,
    behavior_weights,
    clipped_policy_loss,
    full_kl,
    kl_estimate,
    masked_mean,
    masked_sum,
    masked_var,
    on_policy_loss,
    pool_logratio,
    selected_logprobs,
    value_loss,
)

NORM = 37
TEMPERATURE = 0.7


def actor(c: Case, **settings: Any) -> ActorConfig:
    return ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=c.low, clip_ratio_high=c.high,
        clip_ratio_c=c.dual, global_batch_info={"loss_scale_factor": NORM}, **settings,
    )  # fmt: skip


def clipped(mode: str) -> Side:
    def loss(new: Tensor, c: Case) -> Tensor:
        each = clipped_policy_loss(new, c.old, c.advantages, clip_range_low=c.low, clip_range_high=c.high,
                                   dual_clip=c.dual)  # fmt: skip
        return aggregated(each, c, mode=mode, norm=NORM)

    return lambda c: graded(lambda new: loss(new, c), c.new)


def their_policy(loss: Callable[..., Any], mode: str, advantages: Callable[[Case], Tensor]) -> Side:
    return lambda c: graded(lambda new: loss(c.old, new, advantages(c), c.m, mode, actor(c))[0], c.new)


def their_clipped(mode: str) -> Side:
    return their_policy(core.compute_policy_loss_vanilla, mode, lambda c: c.advantages)


def gspo(pool: Callable[[Tensor, Case], Tensor], advantages: Callable[[Case], Tensor]) -> Side:
    def loss(new: Tensor, c: Case) -> Tensor:
        each = clipped_policy_loss(new, c.old, advantages(c), clip_range_low=c.low, clip_range_high=c.high,
                                   logratio=pool(new, c))  # fmt: skip
        return aggregated(each, c, mode="seq-mean-token-mean")

    return lambda c: graded(lambda new: loss(new, c), c.new)


def of_sequence(new: Tensor, c: Case) -> Tensor:
    return pool_logratio(new, c.old, c.mask, c.turn, level="sequence", pooling="mean")


def of_token(new: Tensor, c: Case) -> Tensor:
    """The sequence's ratio on each token, with the token's own gradient (GSPO-token)."""
    return of_sequence(new, c).detach() + new - new.detach()


def their_gspo(advantages: Callable[[Case], Tensor]) -> Side:
    return their_policy(core.compute_policy_loss_gspo, "seq-mean-token-mean", advantages)


def by_row(c: Case) -> Tensor:
    return c.on_tokens(c.row_advantages)


def halves(c: Case) -> tuple[slice, slice]:
    half = len(c.mask) // 2
    return slice(None, half), slice(half, None)


def in_parts(mode: str) -> Side:
    """The sum of two micro-batches' shares of a step."""
    return lambda c: sum(
        (aggregate(c.rewards[part], c.mask[part], mode=mode, num_tokens=c.num_tokens, num_sequences=c.num_sequences,
                   norm=NORM) for part in halves(c)), torch.zeros(()))  # fmt: skip


def their_parts(mode: str) -> Side:
    """The same of two ranks: averaging their gradients halves the sum."""
    return lambda c: sum(
        (core.agg_loss(c.rewards[part], c.m[part], mode, dp_size=2, batch_num_tokens=c.num_tokens,
                       global_batch_size=c.num_sequences, loss_scale_factor=NORM) / 2 for part in halves(c)),
        torch.zeros(()))  # fmt: skip


def values(c: Case) -> tuple[Tensor, Tensor]:
    def loss(new: Tensor) -> Tensor:
        each = value_loss(new, c.values, c.returns, value_clip_range=c.value_clip)
        return aggregated(each, c, mode="token-mean")

    return graded(loss, c.new_values)


def their_values(c: Case) -> tuple[Tensor, Tensor]:
    return graded(lambda new: core.compute_value_loss(new, c.returns, c.values, c.m, c.value_clip)[0], c.new_values)


def kl(estimator: str) -> Side:
    return lambda c: graded(lambda new: kl_estimate(new, c.ref, estimator=estimator), c.new)


def their_kl(estimator: str) -> Side:
    return lambda c: graded(lambda new: core.kl_penalty(new, c.ref, estimator), c.new)


def whole_kl(c: Case) -> Tensor:
    def head(hidden: Tensor) -> Tensor:
        return hidden

    return full_kl(c.logits, head, c.logits.flip(-1), head, temperature=TEMPERATURE, chunk_tokens=7)


def correction(level: str, *, banded: bool) -> Side:
    return lambda c: behavior_weights(c.old, c.sampler, c.mask, level=level, cap=c.cap,
                                      band=(c.low, c.cap) if banded else None)  # fmt: skip


def their_correction(level: str, *, banded: bool) -> Side:
    def theirs(c: Case) -> Tensor:
        # One more row, of weight 1: where no weight is left, theirs divides by zero (compared below).
        logratio, mask = (torch.nn.functional.pad(x, (0, 0, 0, 1), value=fill)
                          for x, fill in ((c.old - c.sampler, 0.0), (c.m, 1.0)))  # fmt: skip
        threshold = f"{c.low!r}_{c.cap!r}" if banded else c.cap
        return compute_rollout_correction_weights(logratio, mask, level, threshold)[0][:-1]

    return theirs


def out_of_band(c: Case) -> Tensor:
    return behavior_weights(c.m + 9.0, c.m, c.mask, level="token", cap=c.cap, band=(c.low, c.cap))


def their_out_of_band(c: Case) -> Tensor:
    return compute_rollout_correction_weights(torch.full_like(c.m, 9.0), c.m, "token", f"{c.low!r}_{c.cap!r}")[0]


def chosen(c: Case) -> tuple[Tensor, ...]:
    """Log-probabilities and their gradient, entropies and theirs."""

    def of(part: int) -> tuple[Tensor, Tensor]:
        return graded(lambda logits: selected_logprobs(
            logits, lambda hidden: hidden, c.ids, temperature=TEMPERATURE, chunk_tokens=7)[part], c.logits)  # fmt: skip

    return *of(0), *of(1)


def their_chosen(c: Case) -> tuple[Tensor, ...]:
    return (
        *graded(lambda logits: functional.logprobs_from_logits(logits / TEMPERATURE, c.ids), c.logits),
        *graded(lambda logits: functional.entropy_from_logits(logits / TEMPERATURE), c.logits),
    )


def moments(c: Case) -> tuple[Tensor, ...]:
    return masked_sum(c.rewards, c.mask), masked_mean(c.rewards, c.mask), masked_var(c.rewards, c.mask)


def their_moments(c: Case) -> tuple[Tensor, ...]:
    return tuple(f(c.rewards, c.m) for f in (functional.masked_sum, functional.masked_mean, functional.masked_var))


ALL = "each aggregation"
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KL_NAMES = {"k1": "k1", "kl": "k1", "abs": "abs", "k2": "k2", "mse": "k2", "k3": "k3", "low_var_kl": "k3",
            "k1+": "k1+", "abs+": "abs+", "k2+": "k2+", "k3+": "k3+", "low_var_kl+": "k3+"}  # fmt: skip

LOSSES = (
    Comparison(what=f"policy loss with dual clip, {ALL}, and gradient", on=("empty rows", "far"), tolerance=EPSILON,
               ours=joined(*(clipped(mode) for mode in AGGREGATIONS)),
               theirs=joined(*(their_clipped(mode) for mode in AGGREGATIONS))),
    Comparison(what="policy loss without ratio (gpg), and gradient",
               ours=lambda c: graded(lambda new: aggregated(on_policy_loss(new, c.advantages), c, mode="token-mean"),
                                     c.new),
               theirs=their_policy(core.compute_policy_loss_gpg, "token-mean", lambda c: c.advantages)),
    Comparison(what="GSPO, one advantage per response, and gradient", ours=gspo(of_sequence, by_row),
               theirs=their_gspo(by_row), tolerance=EPSILON),
    Comparison(what="GSPO, an advantage per token, and gradient", ours=gspo(of_sequence, lambda c: c.advantages),
               theirs=their_gspo(lambda c: c.advantages), tolerance=EPSILON,
               known="each token's gradient takes its own advantage (the paper's GSPO-token), ours is of the ratio",
               translated=gspo(of_token, lambda c: c.advantages)),
    Comparison(what=f"{ALL} of two ranks' parts", on=("empty rows",), tolerance=EPSILON,
               ours=joined(*(in_parts(mode) for mode in AGGREGATIONS)),
               theirs=joined(*(their_parts(mode) for mode in AGGREGATIONS))),
    Comparison(what="aggregation, token-mean", ours=lambda c: aggregated(c.rewards, c, mode="token-mean"),
               theirs=lambda c: core.agg_loss(c.rewards, c.m, "token-mean"), on=("no token",),
               known="0 / 0 without tokens; ours is 0"),
    Comparison(what="aggregation, seq-mean-token-sum-norm without a norm",
               ours=lambda c: aggregated(c.rewards, c, mode="seq-mean-token-sum-norm"),
               theirs=lambda c: core.agg_loss(c.rewards, c.m, "seq-mean-token-sum-norm"),
               known="divides by the tensor's width, which trimming changes; ours refuses",
               translated=lambda c: aggregated(c.rewards, c, mode="seq-mean-token-sum-norm", norm=c.mask.shape[1])),
    Comparison(what="value loss, clipped, and gradient", ours=values, theirs=their_values, on=("empty rows",)),
    Comparison(what=f"KL {', '.join(KL_NAMES)}, and gradients", on=("holes", "far"),
               ours=joined(*(kl(name) for name in KL_NAMES.values())),
               theirs=joined(*(their_kl(name) for name in KL_NAMES))),
    Comparison(what="KL full", ours=whole_kl, theirs=lambda c: core.kl_penalty(c.logits, c.logits.flip(-1), "full"),
               known="not implemented; ours is the exact sum over the vocabulary"),
    *(Comparison(what=f"weights for a sampler that differs, by {level}, truncated and in a band", on=("holes", "far"),
                 ours=joined(*(correction(level, banded=banded) for banded in (False, True))),
                 theirs=joined(*(their_correction(level, banded=banded) for banded in (False, True))))
      for level in ("token", "sequence")),
    Comparison(what="weights for a sampler that differs, none in the band", ours=out_of_band,
               theirs=their_out_of_band, known="its metrics divide by zero; ours is 0 everywhere"),
    Comparison(what="tempered log-probabilities and entropies, and gradients", ours=chosen, theirs=their_chosen),
    Comparison(what="masked sum, mean, variance", ours=moments, theirs=their_moments, tolerance=EPSILON),
)  # fmt: skip
