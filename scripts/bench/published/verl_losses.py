"""Comparisons with verl: losses, KL terms, log-probabilities and weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import verl.trainer.ppo.core_algos as core
import verl.utils.torch_functional as functional
from published.cases import EPSILON, Case, Comparison, Side, graded, joined
from published.ours import NORM, aggregated, chosen, kl, per_row, per_token, policy, values
from torch import Tensor
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.config import ActorConfig

from ippo_cli.formulas import (
    aggregate,
    behavior_weights,
    clipped_policy_loss,
    full_kl,
    masked_mean,
    masked_sum,
    masked_var,
    on_policy_loss,
    pool_logratio,
)

TEMPERATURE = 0.7


def actor(c: Case, **settings: Any) -> ActorConfig:
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=c.low,
        clip_ratio_high=c.high,
        clip_ratio_c=c.dual,
        global_batch_info={"loss_scale_factor": NORM},
        **settings,
    )


def their_policy(loss: Callable[..., Any], mode: str, advantages: Callable[[Case], Tensor]) -> Side:
    return lambda c: graded(lambda new: loss(c.old, new, advantages(c), c.m, mode, actor(c))[0], c.new)


def their_clipped(mode: str) -> Side:
    return their_policy(core.compute_policy_loss_vanilla, mode, per_token)


def gspo_token(c: Case) -> tuple[Tensor, Tensor]:
    """Our GSPO with the sequence ratio on each token and the gradient of the token itself."""

    def loss(new: Tensor) -> Tensor:
        ratio = pool_logratio(new, c.old, c.mask, c.turn, level="sequence", pooling="mean").detach()
        each = clipped_policy_loss(
            new, c.old, c.advantages, clip_range_low=c.low, clip_range_high=c.high, logratio=ratio + new - new.detach()
        )
        return aggregated(each, c, "seq-mean-token-mean")

    return graded(loss, c.new)


def their_gspo(advantages: Callable[[Case], Tensor]) -> Side:
    return their_policy(core.compute_policy_loss_gspo, "seq-mean-token-mean", advantages)


def normed(c: Case, norm: float | None) -> Tensor:
    return aggregate(
        c.rewards,
        c.mask,
        mode="seq-mean-token-sum-norm",
        num_tokens=c.num_tokens,
        num_sequences=c.num_sequences,
        norm=norm,
    )


def halves(c: Case) -> tuple[slice, slice]:
    half = len(c.mask) // 2
    return slice(None, half), slice(half, None)


def in_parts(mode: str) -> Side:
    """Sum the parts of a step from two micro-batches."""
    return lambda c: sum(
        (
            aggregate(
                c.rewards[part],
                c.mask[part],
                mode=mode,
                num_tokens=c.num_tokens,
                num_sequences=c.num_sequences,
                norm=NORM,
            )
            for part in halves(c)
        ),
        torch.zeros(()),
    )


def their_parts(mode: str) -> Side:
    """Sum the parts from two ranks; averaging of gradients halves the sum."""
    return lambda c: sum(
        (
            core.agg_loss(
                c.rewards[part],
                c.m[part],
                mode,
                dp_size=2,
                batch_num_tokens=c.num_tokens,
                global_batch_size=c.num_sequences,
                loss_scale_factor=NORM,
            )
            / 2
            for part in halves(c)
        ),
        torch.zeros(()),
    )


def their_values(c: Case) -> tuple[Tensor, Tensor]:
    return graded(lambda new: core.compute_value_loss(new, c.returns, c.values, c.m, c.value_clip)[0], c.new_values)


def their_kl(estimator: str) -> Side:
    return lambda c: graded(lambda new: core.kl_penalty(new, c.ref, estimator), c.new)


def whole_kl(c: Case) -> Tensor:
    def head(hidden: Tensor) -> Tensor:
        return hidden

    return full_kl(c.logits, head, c.logits.flip(-1), head, temperature=TEMPERATURE, chunk_tokens=7)


def correction(level: str, *, banded: bool) -> Side:
    return lambda c: behavior_weights(
        c.old, c.sampler, c.mask, level=level, cap=c.cap, band=(c.low, c.cap) if banded else None
    )


def their_correction(level: str, *, banded: bool) -> Side:
    def theirs(c: Case) -> Tensor:
        # One extra row of weight 1: without any nonzero weight, verl divides by zero (compared below).
        logratio, mask = (
            torch.nn.functional.pad(x, (0, 0, 0, 1), value=fill) for x, fill in ((c.old - c.sampler, 0.0), (c.m, 1.0))
        )
        threshold = f"{c.low!r}_{c.cap!r}" if banded else c.cap
        return compute_rollout_correction_weights(logratio, mask, level, threshold)[0][:-1]

    return theirs


def out_of_band(c: Case) -> Tensor:
    return behavior_weights(c.m + 9.0, c.m, c.mask, level="token", cap=c.cap, band=(c.low, c.cap))


def their_out_of_band(c: Case) -> Tensor:
    return compute_rollout_correction_weights(torch.full_like(c.m, 9.0), c.m, "token", f"{c.low!r}_{c.cap!r}")[0]


def their_chosen(c: Case) -> tuple[Tensor, ...]:
    return (
        *graded(lambda logits: functional.logprobs_from_logits(logits / TEMPERATURE, c.ids), c.logits),
        *graded(lambda logits: functional.entropy_from_logits(logits / TEMPERATURE), c.logits),
    )


def moments(c: Case) -> tuple[Tensor, ...]:
    return masked_sum(c.rewards, c.mask), masked_mean(c.rewards, c.mask), masked_var(c.rewards, c.mask)


def their_moments(c: Case) -> tuple[Tensor, ...]:
    return tuple(f(c.rewards, c.m) for f in (functional.masked_sum, functional.masked_mean, functional.masked_var))


GSPO = partial(policy, "seq-mean-token-mean", level="sequence")
ALL = "each aggregation"
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KL_NAMES = {
    "k1": "k1",
    "kl": "k1",
    "abs": "abs",
    "k2": "k2",
    "mse": "k2",
    "k3": "k3",
    "low_var_kl": "k3",
    "k1+": "k1+",
    "abs+": "abs+",
    "k2+": "k2+",
    "k3+": "k3+",
    "low_var_kl+": "k3+",
}

LOSSES = (
    Comparison(
        what=f"policy loss with dual clip, {ALL}, and gradient",
        on=("empty rows", "far"),
        tolerance=EPSILON,
        ours=joined(*(policy(mode, dual=True) for mode in AGGREGATIONS)),
        theirs=joined(*(their_clipped(mode) for mode in AGGREGATIONS)),
    ),
    Comparison(
        what="policy loss without ratio (gpg), and gradient",
        ours=lambda c: graded(lambda new: aggregated(on_policy_loss(new, c.advantages), c, "token-mean"), c.new),
        theirs=their_policy(core.compute_policy_loss_gpg, "token-mean", per_token),
    ),
    Comparison(
        what="GSPO, one advantage per response, and gradient",
        ours=GSPO(per_row),
        theirs=their_gspo(per_row),
        tolerance=EPSILON,
    ),
    Comparison(
        what="GSPO, an advantage per token, and gradient",
        ours=GSPO(per_token),
        theirs=their_gspo(per_token),
        tolerance=EPSILON,
        known="each token's gradient uses its own advantage (GSPO-token in the paper); ours is that of the ratio",
        translated=gspo_token,
    ),
    Comparison(
        what=f"{ALL} of two ranks' parts",
        on=("empty rows",),
        tolerance=EPSILON,
        ours=joined(*(in_parts(mode) for mode in AGGREGATIONS)),
        theirs=joined(*(their_parts(mode) for mode in AGGREGATIONS)),
    ),
    Comparison(
        what="aggregation, token-mean",
        ours=lambda c: aggregated(c.rewards, c, "token-mean"),
        theirs=lambda c: core.agg_loss(c.rewards, c.m, "token-mean"),
        on=("no token",),
        known="0 / 0 without tokens; ours is 0",
    ),
    Comparison(
        what="aggregation, seq-mean-token-sum-norm without a norm",
        ours=lambda c: normed(c, None),
        theirs=lambda c: core.agg_loss(c.rewards, c.m, "seq-mean-token-sum-norm"),
        known="divides by the tensor's width, which trimming changes; ours raises an error",
        translated=lambda c: normed(c, c.mask.shape[1]),
    ),
    Comparison(
        what="value loss, clipped, and gradient",
        ours=values(lambda c: c.value_clip),
        theirs=their_values,
        on=("empty rows",),
    ),
    Comparison(
        what=f"KL {', '.join(KL_NAMES)}, and gradients",
        on=("holes", "far"),
        ours=joined(*(kl(name) for name in KL_NAMES.values())),
        theirs=joined(*(their_kl(name) for name in KL_NAMES)),
    ),
    Comparison(
        what="KL full",
        ours=whole_kl,
        theirs=lambda c: core.kl_penalty(c.logits, c.logits.flip(-1), "full"),
        known="not implemented; ours is the exact sum over the vocabulary",
    ),
    *(
        Comparison(
            what=f"weights for a sampler that differs, by {level}, truncated and in a band",
            on=("holes", "far"),
            ours=joined(*(correction(level, banded=banded) for banded in (False, True))),
            theirs=joined(*(their_correction(level, banded=banded) for banded in (False, True))),
        )
        for level in ("token", "sequence")
    ),
    Comparison(
        what="weights for a sampler that differs, none in the band",
        ours=out_of_band,
        theirs=their_out_of_band,
        known="its metrics divide by zero; ours is 0 everywhere",
    ),
    Comparison(
        what="tempered log-probabilities and entropies, and gradients",
        theirs=their_chosen,
        ours=joined(chosen(0, TEMPERATURE), chosen(1, TEMPERATURE)),
    ),
    Comparison(what="masked sum, mean, variance", ours=moments, theirs=their_moments, tolerance=EPSILON),
)
