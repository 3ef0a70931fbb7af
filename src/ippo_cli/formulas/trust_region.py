"""Trust regions of a policy update: the tokens that left the region around the old policy, and clipped log-ratios."""

from __future__ import annotations

import math

import torch

from ippo_cli.formulas.masked import as_real
from ippo_cli.formulas.shapes import Kept, Real

REGIONS = ("ratio", "tv", "kl")

# Complements of probabilities below this are replaced by it in logarithms, as in verl: 1 - p is 0 for a certain token.
MIN_COMPLEMENT = 1e-8


@torch.no_grad()
def outside_trust_region(
    new_logprobs: Real, logprobs: Real, logratio: Real, *, region: str, low: float, high: float
) -> tuple[Kept, Kept]:
    """Where the probability fell below the region, and where it rose above it: two boolean tensors, `[B, R]`.

    With `p_new`, `p_old` from the log-probabilities and `rho = exp(logratio)` (from `pool_logratio`), by `region`:

        ratio    rho < 1 - low                          rho > 1 + high
        tv       p_new - p_old < -low                   p_new - p_old > high
        kl       D > low and p_new < p_old              D > high and p_new > p_old

    `D = p_old log(p_old / p_new) + (1 - p_old) log((1 - p_old) / (1 - p_new))` is the KL divergence between the
    two-point distributions "this token or another one", and `|p_new - p_old|` is their total variation.

    p_old = .5, p_new = .8: ratio 1.6; tv +.3; D = .5 log .625 + .5 log 2.5 = .2231.
    p_old = .001, p_new = .01: ratio 10, but tv +.009 and D = .0067.

    Source: PPO (arXiv 1707.06347) for the ratio; DPPO (arXiv 2602.04879), eq. 12 to 14, for tv and kl.
    """
    if region == "ratio":
        ratio = as_real(logratio).exp()
        return ratio < 1.0 - low, ratio > 1.0 + high
    if region not in REGIONS:
        raise ValueError(f"region={region}; must be one of {' '.join(REGIONS)}")
    new, old = as_real(new_logprobs), as_real(logprobs)
    change = new.exp() - old.exp()
    if region == "tv":
        return change < -low, change > high
    rest_new, rest_old = (-torch.expm1(x.clamp(max=0.0)) for x in (new, old))
    divergence = old.exp() * (old - new) + rest_old * (
        rest_old.clamp(min=MIN_COMPLEMENT).log() - rest_new.clamp(min=MIN_COMPLEMENT).log()
    )
    return (divergence > low) & (new < old), (divergence > high) & (new > old)


def clip_logratio(logratio: Real, advantages: Real, *, low: float, high: float) -> Real:
    """Each token's log-ratio, limited on the side to which its advantage pushes it; shape of `logratio`.

    `min(logratio, log(1 + high))` where `A > 0`, `max(logratio, log(1 - low))` elsewhere: a limited token has no
    gradient, but counts in a mean over its sequence (`pool_logratio`), so that the mean is of the clipped ratios.

    Ratios 2 and .5 with A = 1 and high = .5: 1.5 and .5; their geometric mean is .866.

    Source: GMPO (arXiv 2507.20673), eq. 4, with the range (e^-0.4, e^0.4).
    """
    lower = math.log(1.0 - low) if low < 1.0 else -math.inf
    logratio = as_real(logratio)
    return torch.where(advantages > 0, logratio.clamp(max=math.log1p(high)), logratio.clamp(min=lower))
