"""Weights of the parts of a loss, from the norms of the gradients of the parts."""

from __future__ import annotations

import torch

from ippo_cli.formulas.shapes import Players


def equal_norm_weights(norms: Players, *, limit: float) -> Players:
    """Weights with which the gradients of N parts of a loss have equal norms, `[N]` float64 with sum N.

    `w_i` is proportional to `1 / norms_i`, within `[1 / limit, limit]`. A part without a gradient (norm 0) has weight
    1, and the others sum to their number.

    Norms 1 and 3: weights 1.5 and 0.5, since 1.5 * 1 = 0.5 * 3.
    """
    norms = norms.double()
    weights, has_gradient = torch.ones_like(norms), norms > 0
    if bool(has_gradient.any()):
        weights[has_gradient] = limit_weights(1.0 / norms[has_gradient], limit=limit)
    return weights


def gradnorm_weights(
    weights: Players, norms: Players, loss_ratios: Players, *, alpha: float, rate: float, limit: float
) -> Players:
    """Weights of N parts of a loss after one step of GradNorm, `[N]` float64 with sum N.

    `norms` are those of the unweighted gradients, `loss_ratios` the losses divided by the initial ones. With
    `G_i = w_i norms_i`, the relative inverse training rate `r_i = loss_ratios_i / mean(loss_ratios)` and the target
    `T_i = mean(G) r_i^alpha`, which is a constant, it is a gradient step on `sum_i |G_i - T_i|`:
    `w_i - rate norms_i / mean(norms) sign(G_i - T_i)`, then limited to `[1 / limit, limit]` and scaled to the sum N.
    The division by `mean(norms)` keeps `rate` independent of the scale of the loss; the paper uses Adam, which does so
    too. Parts that are all without a loss have equal rates.

    Weights 1 and 1, norms 1 and 3, equal ratios, rate 0.1: the targets are 2, so 1 + 0.05 and 1 - 0.15, times 2 / 1.9.

    Source: Chen et al. 2018 (arXiv 1711.02257), equations 1 and 2 and algorithm 1.
    """
    weights, norms, loss_ratios = weights.double(), norms.double(), loss_ratios.double()
    if not bool((norms > 0).any()):
        return weights
    scaled = weights * norms
    mean_ratio = loss_ratios.mean()
    rates = loss_ratios / mean_ratio if mean_ratio > 0 else torch.ones_like(loss_ratios)
    gradient = norms / norms.mean() * torch.sign(scaled - scaled.mean() * rates**alpha)
    return limit_weights((weights - rate * gradient).clamp(min=1.0 / limit), limit=limit)


def limit_weights(weights: Players, *, limit: float) -> Players:
    """Positive weights times a common factor, then clipped to `[1 / limit, limit]`, with sum N: `[N]` float64.

    The factor is the one for which the sum of the clipped weights is N. It exists, since `limit` is at least 1.
    """
    if not limit >= 1.0:
        raise ValueError(f"limit={limit}; must be 1 or more: use 10.0")
    weights = weights.double()
    low, high = 1.0 / limit, limit
    # The sum is piecewise linear in the factor, with a bend where a weight reaches a limit.
    bends = torch.cat([low / weights, high / weights]).sort().values
    sums = (bends[:, None] * weights).clamp(low, high).sum(dim=1)
    last = int((sums <= len(weights)).sum()) - 1  # the sum at the first bend is below N, unless all are at a limit
    before, after = bends[last], bends[min(last + 1, len(bends) - 1)]
    middle = 0.5 * (before + after)
    is_free = (middle * weights > low) & (middle * weights < high)
    if not bool(is_free.any()):
        return (before * weights).clamp(low, high)
    at_limit = (middle * weights).clamp(low, high)[~is_free].sum()
    factor = (len(weights) - at_limit) / weights[is_free].sum()
    return (factor * weights).clamp(low, high)
