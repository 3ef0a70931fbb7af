"""Estimates of means over prompts: confidence intervals of fractions, a paired test, and pass@k of k samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

Z_95 = 1.959963984540054  # the normal distribution's quantile of 0.975
RESAMPLES = 10_000
RESAMPLE_CHUNK = 1 << 22
MAX_EXACT = 16  # exact test up to this number of nonzero differences
ROUNDING = 1e-12

Interval = tuple[float, float]
UNKNOWN_INTERVAL: Interval = (math.nan, math.nan)


def pass_at_k(right: Tensor, count: Tensor, k: int) -> Tensor:
    """The chance that one of k samples of a prompt is right, `[m]`, without bias; NaN with fewer than k samples.

    1 - C(n - c, k) / C(n, k)       c right ones of n (Chen et al. 2021, equation 1)
    """
    right, count = right.double(), count.double()
    none = torch.ones_like(count)
    for position in range(k):
        none = none * ((count - right - position).clamp(min=0) / (count - position).clamp(min=1))
    return (1 - none).where(count >= k, math.nan)


def wilson(mean: float, count: float, z: float = Z_95) -> Interval:
    """Wilson's score interval of a fraction observed in `count` independent trials; `z`: the normal quantile."""
    center = mean + z * z / (2 * count)
    half = z * math.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max((center - half) / scale, 0.0), min((center + half) / scale, 1.0)


def share_interval(values: Tensor, trials: float = math.inf, z: float = Z_95) -> Interval:
    """Confidence interval of the mean of values from 0 to 1, `[m]`, one for each prompt; NaN is ignored.

    Wilson's interval with an effective number of trials: samples of one prompt are not independent, and m prompts with
    values of variance s² and mean p count as p (1 - p) m / s² trials (Kish's effective sample size). That is m where
    every value is 0 or 1, and never more than `trials`, the number of all samples of all these prompts.
    """
    finite = values[torch.isfinite(values)].double()
    if not len(finite):
        return UNKNOWN_INTERVAL
    mean, spread = min(max(float(finite.mean()), 0.0), 1.0), float(finite.var(correction=0))
    worth = mean * (1 - mean) * len(finite) / spread if spread > ROUNDING else len(finite)
    return wilson(mean, min(max(worth, 1.0), trials), z)


def paired_share_interval(differences: Tensor, z: float = Z_95) -> Interval:
    """Confidence interval of the mean of differences of two values that are 0 or 1, `[m]`; NaN is ignored.

    The adjusted Wald interval of Bonett and Price (2012): one row more with each sign, so that m equal rows do not
    give an interval of width 0.
    """
    finite = differences[torch.isfinite(differences)]
    if not len(finite):
        return UNKNOWN_INTERVAL
    count = len(finite) + 2
    higher, lower = (float((finite == sign).sum() + 1) / count for sign in (1, -1))
    half = z * math.sqrt((higher + lower - (higher - lower) ** 2) / count)
    return max(higher - lower - half, -1.0), min(higher - lower + half, 1.0)


def sign_flip_p(differences: Tensor, seed: int) -> float:
    """Two-sided p value of a mean difference, `[m]`, under random sign flips.

    Fisher's randomisation test for pairs; for differences of -1, 0 or 1 it is McNemar's test. It enumerates all signs
    for at most `MAX_EXACT` nonzero differences, and samples `RESAMPLES` sign vectors otherwise.
    """
    nonzero = differences[torch.isfinite(differences)].double().cpu()
    nonzero = nonzero[nonzero != 0]
    if not len(nonzero):
        return 1.0
    seen = abs(float(nonzero.sum())) - ROUNDING * float(nonzero.abs().sum())
    if len(nonzero) <= MAX_EXACT:
        numbers = torch.arange(1 << len(nonzero))
        signs = 1.0 - 2.0 * ((numbers[:, None] >> torch.arange(len(nonzero))) & 1).double()
        return float((((signs @ nonzero).abs()) >= seen).double().mean())
    generator = torch.Generator().manual_seed(seed)
    as_far, at_once = 0, max(RESAMPLE_CHUNK // len(nonzero), 1)
    for start in range(0, RESAMPLES, at_once):
        rows = min(at_once, RESAMPLES - start)
        signs = torch.randint(2, (rows, len(nonzero)), generator=generator).double() * 2 - 1
        as_far += int(((signs @ nonzero).abs() >= seen).sum())
    return (as_far + 1) / (RESAMPLES + 1)  # the observed signs count as one sample (Phipson and Smyth 2010)
