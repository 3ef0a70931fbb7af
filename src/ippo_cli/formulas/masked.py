"""Sums, means, variances and whitening over the entries that a mask keeps.

Every function first replaces entries off the mask by 0, so that they, NaN included, never reach a result. Arithmetic is
in float32 or better, for every input type.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ippo_cli.formulas.shapes import Kept, Mask, Real, Scalar, Tokens, TurnNumbers, Turns


def as_real(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 where it already is."""
    return x if x.dtype == torch.float64 else x.float()


def keep(x: Real, mask: Kept) -> Real:
    """`x` (float32 or better) on the mask, 0 off it; both of one shape."""
    return torch.where(mask.bool().expand_as(x), as_real(x), 0.0)


def masked_sum(x: Real, mask: Kept) -> Scalar:
    """Sum of the kept entries: `sum_i m_i x_i`, a scalar; 0 where nothing is kept."""
    return keep(x, mask).sum()


def masked_mean(x: Real, mask: Kept) -> Scalar:
    """Mean of the kept entries: `sum_i m_i x_i / max(sum_i m_i, 1)`, a scalar."""
    return masked_sum(x, mask) / _count(x, mask).clamp(min=1)


def masked_var(x: Real, mask: Kept) -> Scalar:
    """Unbiased variance of the kept entries, a scalar: `sum_i m_i (x_i - mean)^2 / (n - 1)`; 0 where n < 2.

    Bessel's correction, as in `torch.var`. Entries that are all equal give exactly 0.
    """
    return _unbiased_variance(_center(x, mask), mask)


def masked_whiten(
    x: Real,
    mask: Kept,
    *,
    center: bool = True,
    scale: bool = True,
    moments: tuple[Scalar | float, Scalar | float] | None = None,
) -> Real:
    """Shift kept entries to mean 0 and scale them to variance 1: `(x - mean) * rsqrt(var + 1e-8)`; 0 off the mask.

    Shape of `x`. `center=False` keeps the mean (`x * rsqrt(var + 1e-8)`), `scale=False` keeps the variance. `moments`
    is an external `(mean, var)`, for instance over all ranks; by default they are those of the kept entries. Equal
    entries give exactly 0 when centred (otherwise the rounding error of the mean would be multiplied by 1e4); an
    external variance of exactly 0 has the same effect.

    Source: the advantage whitening of Ziegler et al. 2019 (arXiv 1909.08593) and its released code.
    """
    x = keep(x, mask)
    if moments is None:
        centered = _center(x, mask)
        var = _unbiased_variance(centered, mask)
    else:
        mean, var = (torch.as_tensor(moment, dtype=x.dtype, device=x.device) for moment in moments)
        centered = torch.where(var == 0, 0.0, x - mean) if scale else x - mean
    whitened = centered if center else x
    return keep(whitened * torch.rsqrt(var + 1e-8) if scale else whitened, mask)


def turn_slots(mask: Mask, turn: TurnNumbers) -> tuple[TurnNumbers, int]:
    """Each token's turn as an index that is always valid (0 off the mask), `[B, R]`, and the number of turns K.

    K is one more than the largest turn on the mask, and at least 1. A kept token without a turn raises `ValueError`.
    """
    slots = torch.where(mask.bool(), turn, 0).long()
    if slots.numel() == 0:
        return slots, 1
    lowest, highest = torch.stack(slots.aminmax()).tolist()
    if lowest < 0:
        raise ValueError(
            f"turn={lowest} on an action token; every token that response_mask keeps has a turn of 0 or more"
        )
    return slots, highest + 1


def turn_totals(x: Tokens, mask: Mask, slots: TurnNumbers, turns: int) -> tuple[Turns, Turns]:
    """Sum of the kept `x` `[B, R]` in each turn, and the number of kept tokens in it: both `[B, K]`.

    `slots` and `turns` come from `turn_slots`.
    """
    kept = keep(x, mask)
    empty = kept.new_zeros(kept.shape[0], turns)
    return empty.scatter_add(1, slots, kept), empty.scatter_add(1, slots, mask.bool().to(kept.dtype))


def _count(x: Tensor, mask: Tensor) -> Tensor:
    return mask.bool().expand_as(x).sum()


def _unbiased_variance(centered: Tensor, mask: Tensor) -> Tensor:
    return centered.square().sum() / (_count(centered, mask) - 1).clamp(min=1)


def _center(x: Tensor, mask: Tensor) -> Tensor:
    """Kept entries less their mean, 0 off the mask: exactly 0 where all are equal.

    The mean is computed from the distances to the smallest entry, which are exactly 0 when all entries are equal.
    """
    x = as_real(x)
    if x.numel() == 0:
        return x
    smallest = torch.where(mask.bool(), x.detach(), torch.inf).amin()
    distance = keep(x - smallest, mask)
    return keep(distance - masked_mean(distance, mask), mask)
