"""What a mean over prompts is worth: intervals of 95 %, a paired test, and pass@k of several samples a prompt."""

from __future__ import annotations

import math

import torch
from torch import Tensor

Z_95 = 1.959963984540054  # the normal distribution's quantile of 0.975
RESAMPLES = 10_000
RESAMPLE_CHUNK = 1 << 22
MAX_EXACT = 16  # differences up to whose number all signs are tried
ROUNDING = 1e-12

Interval = tuple[float, float]
UNKNOWN_INTERVAL: Interval = (math.nan, math.nan)


def pass_at_k(right: Tensor, count: Tensor, k: int) -> Tensor:
    """The chance that one of k samples of a prompt is right, `[m]`, without bias; NaN with fewer than k samples.

    1 - C(n - c, k) / C(n, k)       c right ones of n (Chen et al. 2021, equation 1)
    """
    right, count = right.double(), count.double()
    none = torch.ones_like(count)
    for drawn in range(k):
        none = none * ((count - right - drawn).clamp(min=0) / (count - drawn).clamp(min=1))
    return (1 - none).where(count >= k, math.nan)


def wilson(mean: float, count: float) -> Interval:
    """Wilson's score interval of a share that was seen in `count` independent trials."""
    center = mean + Z_95 * Z_95 / (2 * count)
    half = Z_95 * math.sqrt(mean * (1 - mean) / count + Z_95 * Z_95 / (4 * count * count))
    scale = 1 + Z_95 * Z_95 / count
    return max((center - half) / scale, 0.0), min((center + half) / scale, 1.0)


def share_interval(values: Tensor, trials: float = math.inf) -> Interval:
    """Of the mean of values from 0 to 1, `[m]`, one for each prompt; NaN is left out.

    Wilson's interval for as many trials as the prompts are worth: a prompt's samples are no independent trials, and
    m prompts whose values vary by s² about their mean p are worth p (1 - p) m / s² (Kish's effective sample size). That
    is m where every value is 0 or 1, and never more than `trials`, all samples of all these prompts.
    """
    there = values[torch.isfinite(values)].double()
    if not len(there):
        return UNKNOWN_INTERVAL
    mean, spread = min(max(float(there.mean()), 0.0), 1.0), float(there.var(correction=0))
    worth = mean * (1 - mean) * len(there) / spread if spread > ROUNDING else len(there)
    return wilson(mean, min(max(worth, 1.0), trials))


def bootstrap_interval(values: Tensor, seed: int) -> Interval:
    """Of the mean of any values, `[m]`, one for each prompt: percentiles of means over prompts drawn anew.

    NaN is left out; unknown where fewer than two values are there.
    """
    there = values[torch.isfinite(values)].double().cpu()
    if len(there) < 2:
        return UNKNOWN_INTERVAL
    generator = torch.Generator().manual_seed(seed)
    means: list[Tensor] = []
    at_once = max(RESAMPLE_CHUNK // len(there), 1)
    for start in range(0, RESAMPLES, at_once):
        rows = min(at_once, RESAMPLES - start)
        means.append(there[torch.randint(len(there), (rows, len(there)), generator=generator)].mean(dim=1))
    low, high = torch.cat(means).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def sign_flip_p(differences: Tensor, seed: int) -> float:
    """How likely a mean at least as far from 0 is if every difference, `[m]`, could as well have the other sign.

    The two-sided randomisation test for pairs (Fisher); of differences that are -1, 0 or 1 it is McNemar's. All signs
    are tried where at most `EXACT` differences are not 0, and `RESAMPLES` draws of them otherwise.
    """
    there = differences[torch.isfinite(differences)].double().cpu()
    there = there[there != 0]
    if not len(there):
        return 1.0
    seen = abs(float(there.sum())) - ROUNDING * float(there.abs().sum())
    if len(there) <= MAX_EXACT:
        numbers = torch.arange(1 << len(there))
        signs = 1.0 - 2.0 * ((numbers[:, None] >> torch.arange(len(there))) & 1).double()
        return float((((signs @ there).abs()) >= seen).double().mean())
    generator = torch.Generator().manual_seed(seed)
    as_far, at_once = 0, max(RESAMPLE_CHUNK // len(there), 1)
    for start in range(0, RESAMPLES, at_once):
        rows = min(at_once, RESAMPLES - start)
        signs = torch.randint(2, (rows, len(there)), generator=generator).double() * 2 - 1
        as_far += int(((signs @ there).abs() >= seen).sum())
    return (as_far + 1) / (RESAMPLES + 1)  # what was seen is one of the draws (Phipson and Smyth 2010)
