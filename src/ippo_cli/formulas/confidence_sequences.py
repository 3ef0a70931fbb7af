"""Confidence sequences: intervals of a mean that hold at all times together, so that one may stop at any of them.

`confidence_sequence`, for bounded values: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
betting" (2024), arXiv 2010.09686. `normal_confidence_sequence`: Wang and Ramdas, "Anytime-valid t-tests and confidence
sequences for Gaussian means with unknown variance" (2024), arXiv 2310.03722.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

TRUNCATION = 0.95
"""Largest fraction of the capital at stake, the paper's c. Its 1/2 protects long sequences; with 5 to 30 values that
differ less from each other than the range is wide, large bets need a third to half of the values less."""
EFFECT_VARIANCE = 10.0
"""Prior variance of a mean in units of the values' variance: clear effects of training are several deviations."""
BISECTIONS = 60


def hedged_log_capital(values: Tensor, mean: Tensor, alpha: float, truncation: float = TRUNCATION) -> Tensor:
    """Log capital of a gambler who bets against a mean, `[..., n]`, after each value in [0, 1], `[..., n]`.

        lambda_t = sqrt(2 log(2/alpha) / (s²_{t-1} t log(t + 1)))                        (equation 26)
        K+ = prod 1 + min(lambda_t, c/m) (x_t - m),  K- = prod 1 - min(lambda_t, c/(1 - m)) (x_t - m)
        max(K+, K-) / 2                                                                  (Theorem 3, theta = 1/2)

    `mean`: m, `[...]`, broadcast over values. s²_t is the running variance, which begins at 1/4. If m is the
    conditional mean of every value, the capital reaches 1/alpha with probability at most alpha, ever.
    """
    bets = _plug_in_bets(values, alpha)
    mean = mean[..., None]
    rising = torch.minimum(bets, truncation / mean) * (values - mean)
    falling = torch.minimum(bets, truncation / (1 - mean)) * (values - mean)
    # A mean of 0 or 1 has an infinite limit of the bet, which `minimum` removes.
    gains = torch.stack([rising, -falling]).log1p().cumsum(-1)
    return gains.amax(0) - math.log(2)


def confidence_sequence(values: Tensor, alpha: float, truncation: float = TRUNCATION) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds of the mean of values in [0, 1] after each of them, `[..., n]`, in their fixed order.

    The means against which `hedged_log_capital` is below log(1/alpha), intersected over time. The probability that any
    of these intervals misses the mean is at most `alpha`; values may depend on earlier ones if their conditional mean
    does not.
    """
    values = values.double()
    lower = _lower_bounds(values, alpha, truncation).cummax(-1).values
    upper = 1 - _lower_bounds(1 - values, alpha, truncation).cummax(-1).values
    return lower, upper


def normal_confidence_sequence(
    values: Tensor, alpha: float, effect_variance: float = EFFECT_VARIANCE
) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds of the mean of independent normal values after each of them, `[..., n]`, intersected.

        e_n(m) = (1 + n g)^(-1/2) ((1 + t²/(n - 1)) / (1 + t²/((n - 1)(1 + n g))))^(n/2),   t = sqrt(n) (mean - m) / s

    is a likelihood ratio of t statistics; effect sizes of the alternative are normal with variance g: scale and
    order do not matter, and P(e_n(m) >= 1/alpha for any n) <= alpha. Solved for m: with
    r = ((1 + n g)/alpha²)^(1/n), the half-width is s sqrt((n - 1)/n (r - 1)/(1 - r/(1 + n g))), infinite for one value
    and if r >= 1 + n g. A deviation of 0 has half-width 0.
    """
    values = values.double()
    counts = torch.arange(1, values.shape[-1] + 1, dtype=torch.double)
    means = values.cumsum(-1) / counts
    squares = (values.square().cumsum(-1) - counts * means.square()).clamp(min=0)
    ratio, spread = ((1 + counts * effect_variance) / alpha**2) ** (1 / counts), 1 + counts * effect_variance
    factors = (ratio - 1) / (1 - ratio / spread) / counts  # of the sum of squares, which is (n - 1) s²
    is_finite = (ratio < spread) & (counts > 1)
    half = (squares * factors).sqrt().where(is_finite, torch.inf)
    return (means - half).cummax(-1).values, (means + half).cummin(-1).values


def _lower_bounds(values: Tensor, alpha: float, truncation: float) -> Tensor:
    """Bounds after each value: K+ decreases in the mean, so that bisection finds where it is 2/alpha."""
    bets, limit = _plug_in_bets(values, alpha), math.log(2 / alpha)
    earlier = torch.ones(values.shape[-1], values.shape[-1], dtype=torch.bool).tril()
    low, high = torch.zeros_like(values), torch.ones_like(values)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        stakes = torch.minimum(bets[..., None, :], truncation / middle[..., None])
        gains = (stakes * (values[..., None, :] - middle[..., None])).log1p().where(earlier, 0.0).sum(-1)
        low, high = middle.where(gains >= limit, low), high.where(gains >= limit, middle)
    return low


def _plug_in_bets(values: Tensor, alpha: float) -> Tensor:
    """Bets before each value, `[..., n]`, from the variance of earlier values, with one prior value 1/2."""
    times = torch.arange(1, values.shape[-1] + 1, dtype=values.dtype)
    means = (0.5 + values.cumsum(-1)) / (times + 1)
    variances = (0.25 + (values - means).square().cumsum(-1)) / (times + 1)
    before = torch.cat([torch.full_like(values[..., :1], 0.25), variances[..., :-1]], dim=-1)
    return (2 * math.log(2 / alpha) / (before * times * (times + 1).log())).sqrt()
