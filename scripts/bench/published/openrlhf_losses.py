"""Comparisons with OpenRLHF: losses, KL terms and weights. `openrlhf.py` imports it after its stubs of packages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from openrlhf.models.loss import PolicyLoss, SFTLoss, ValueLoss, aggregate_loss
from openrlhf.models.utils import compute_approx_kl
from published.cases import EPSILON, SINGLE, Case, Comparison, Side, graded, joined
from published.ours import aggregated, kl, per_row, per_token, policy, values
from torch import Tensor

from ippo_cli.formulas import behavior_weights, clipped_policy_loss, kl_estimate, outside_trust_region, pool_logratio


def their_policy(kind: str, *, dual: bool, by_token: bool, advantages: Callable[[Case], Tensor]) -> Side:
    def loss(new: Tensor, c: Case) -> Tensor:
        objective = PolicyLoss(c.low, c.high, c.dual if dual else None, by_token, kind)
        return objective(new, c.old, advantages(c), c.m)[0]

    return lambda c: graded(lambda new: loss(new, c), c.new)


def compute_weighted_loss(c: Case, weights: Tensor) -> Tensor:
    each = clipped_policy_loss(c.new, c.old, c.advantages, clip_range_low=c.low, clip_range_high=c.high)
    return aggregated(each * weights, c, "token-mean")


def their_corrected(level: str, mode: str, low: Callable[[Case], float]) -> Side:
    def theirs(c: Case) -> Tensor:
        objective = PolicyLoss(
            c.low, c.high, is_correction_level=level, is_correction_mode=mode, is_correction_threshold=(low(c), c.cap)
        )
        return objective(c.new, c.old, c.advantages, c.m, c.sampler)[0]

    return theirs


def weights(c: Case, *, banded: bool, level: str = "token") -> Tensor:
    return behavior_weights(
        c.old,
        c.sampler,
        c.mask,
        level=level,
        cap=float("inf") if banded else c.cap,
        band=(c.low, c.cap) if banded else None,
    )


def gated_by_mean(c: Case) -> Tensor:
    """Token weights of the rows with a geometric mean inside the band; 0 elsewhere."""
    gate = pool_logratio(c.old, c.sampler, c.mask, c.turn, level="sequence", pooling="mean").exp()
    each = behavior_weights(c.old, c.sampler, c.mask, level="token", cap=float("inf"))
    return torch.where((gate >= c.low) & (gate <= c.cap), each, 0.0)


def likely_sampler(c: Case) -> Case:
    """Return the case with log-probabilities of the sampler of at most 0."""
    return replace(c, sampler=-c.sampler.abs())


def below_zero(c: Case) -> Tensor:
    """Where OpenRLHF's divergence of two nearly equal probabilities rounds to a number below 0."""
    p, q = (x.exp().clamp(1e-6, 1 - 1e-6) for x in (c.sampler, c.old))
    return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log() < 0.0


def within_region(region: str, *, without_rounded: bool = False) -> Side:
    """The policy loss with token weights, without tokens of a probability far from the sampler's."""

    def loss(c: Case) -> Tensor:
        c = likely_sampler(c)
        logratio = c.old - c.sampler
        below, above = outside_trust_region(c.old, c.sampler, logratio, region=region, low=c.low, high=c.low)
        outside = below | above | below_zero(c) if without_rounded else below | above
        every = behavior_weights(c.old, c.sampler, c.mask, level="token", cap=float("inf"))
        return compute_weighted_loss(c, torch.where(outside, 0.0, every))

    return loss


def their_within_region(gating: str) -> Side:
    def theirs(c: Case) -> Tensor:
        c = likely_sampler(c)
        objective = PolicyLoss(
            c.low,
            c.high,
            is_correction_level="token",
            is_correction_gating=gating,
            is_correction_threshold=(0.0, c.low),
        )
        return objective(c.new, c.old, c.advantages, c.m, c.sampler)[0]

    return theirs


def of_best_rows(c: Case) -> Tensor:
    return c.mask & (c.score >= c.score.mean())[:, None]


def their_values(c: Case, clip: float | None) -> tuple[Tensor, Tensor]:
    return graded(lambda new: ValueLoss(clip)(new, c.values, c.returns, c.m), c.new_values)


def capped_kl(estimator: str) -> Side:
    return lambda c: graded(lambda new: kl_estimate(new, c.ref, estimator=estimator).clamp(-10, 10), c.new)


def their_kl(estimator: str, *, straight: bool = False) -> Side:
    return lambda c: graded(
        lambda new: compute_approx_kl(new, c.ref, kl_estimator=estimator, unbiased_gradient=straight), c.new
    )


LOSSES = (
    *(
        Comparison(
            what=f"policy loss{' with dual clip' if dual else ''}, {mode}, and gradient",
            ours=policy(mode, dual=dual),
            theirs=their_policy("ppo", dual=dual, by_token=by_token, advantages=per_token),
            on=("empty rows", "far"),
            tolerance=EPSILON,
        )
        for dual in (False, True)
        for mode, by_token in (("token-mean", True), ("seq-mean-token-mean", False))
    ),
    Comparison(
        what="GSPO and gradient",
        ours=policy("seq-mean-token-mean", per_row, level="sequence"),
        theirs=their_policy("gspo", dual=False, by_token=False, advantages=per_row),
        tolerance=EPSILON,
    ),
    Comparison(
        what="GSPO, an advantage per token, and gradient",
        ours=policy("seq-mean-token-mean", per_token, level="sequence"),
        theirs=their_policy("gspo", dual=False, by_token=False, advantages=per_token),
        tolerance=EPSILON,
    ),
    Comparison(
        what="policy loss, weights for a sampler that differs, truncated",
        ours=lambda c: compute_weighted_loss(c, weights(c, banded=False)),
        theirs=their_corrected("token", "clip", lambda c: 0.0),
    ),
    Comparison(
        what="policy loss, weights for a sampler that differs, in a band",
        ours=lambda c: compute_weighted_loss(c, weights(c, banded=True)),
        theirs=their_corrected("token", "mask", lambda c: c.low),
    ),
    Comparison(
        what="policy loss, weights by sequence, in a band",
        ours=lambda c: compute_weighted_loss(c, weights(c, banded=True, level="sequence")),
        theirs=their_corrected("seq", "mask", lambda c: c.low),
        translated=lambda c: compute_weighted_loss(c, gated_by_mean(c)),
        known="the band tests the mean log-ratio, and token weights apply; ours uses the product for both",
    ),
    Comparison(
        what="policy loss, tokens of a probability near the sampler's (gating=tv)",
        ours=within_region("tv"),
        theirs=their_within_region("tv"),
    ),
    Comparison(
        what="policy loss, tokens of a probability near the sampler's (gating=binary_kl)",
        ours=within_region("kl"),
        theirs=their_within_region("binary_kl"),
        known="a KL of nearly equal probabilities rounds below 0 in float32, and the token is left out; ours is kept",
        translated=within_region("kl", without_rounded=True),
    ),
    Comparison(
        what="likelihood of right responses (SFTLoss; VAPO's positive term), and gradient",
        ours=lambda c: graded(lambda new: aggregated(-new, c, "token-mean", mask=of_best_rows(c)), c.new),
        theirs=lambda c: graded(lambda new: SFTLoss()(new, of_best_rows(c).to(new.dtype)), c.new),
    ),
    Comparison(
        what="value loss, clipped, and gradient",
        ours=values(lambda c: c.value_clip),
        theirs=lambda c: their_values(c, c.value_clip),
        on=("empty rows",),
    ),
    Comparison(what="value loss and gradient", ours=values(lambda c: None), theirs=lambda c: their_values(c, None)),
    *(
        Comparison(
            what=f"aggregation, {mode}",
            ours=lambda c, mode=mode: aggregated(c.rewards, c, mode),
            theirs=lambda c, by_token=by_token: aggregate_loss(c.rewards, c.m, by_token),
            on=("empty rows",),
            tolerance=EPSILON,
        )
        for mode, by_token in (("token-mean", True), ("seq-mean-token-mean", False))
    ),
    Comparison(
        what="aggregation, token-mean",
        ours=lambda c: aggregated(c.rewards, c, "token-mean"),
        theirs=lambda c: aggregate_loss(c.rewards, c.m),
        on=("no token",),
        known="0 / 0 without tokens; ours is 0",
    ),
    Comparison(
        what="KL k1, k2 and gradients",
        ours=joined(kl("k1"), kl("k2")),
        tolerance=SINGLE,
        theirs=joined(their_kl("k1"), their_kl("k2")),
    ),
    Comparison(
        what="KL k1, k2 and gradients",
        ours=joined(kl("k1"), kl("k2")),
        tolerance=SINGLE,
        on=("far",),
        theirs=joined(their_kl("k1"), their_kl("k2")),
        translated=joined(capped_kl("k1"), capped_kl("k2")),
        known="bounded to +-10, with gradient 0 outside; ours bounds only k3",
    ),
    Comparison(what="KL k3 and gradient", ours=kl("k3"), theirs=their_kl("k3"), on=("holes", "far"), tolerance=SINGLE),
    Comparison(
        what="KL k1+, k2+, k3+ (unbiased_gradient) and gradients",
        tolerance=SINGLE,
        ours=joined(kl("k1+"), kl("k2+"), kl("k3+")),
        theirs=joined(*(their_kl(one, straight=True) for one in ("k1", "k2", "k3"))),
    ),
)
