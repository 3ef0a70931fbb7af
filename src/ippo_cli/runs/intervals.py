"""Means with t-intervals, over rows or over runs that differ only in the seed. Does not import torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95
MAX_EXACT_DEGREES = 200


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean with a t-interval, which is None for one value."""

    count: int
    mean: float
    low: float | None
    high: float | None


def mean_interval(values: Sequence[float], comparisons: int = 1) -> MeanInterval | None:
    """Mean and t-interval of the finite values; None without one. `comparisons`: see `normal_quantile`."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    mean = statistics.fmean(finite)
    if len(finite) == 1:
        return MeanInterval(1, mean, None, None)
    half = t_quantile(len(finite) - 1, comparisons) * statistics.stdev(finite) / math.sqrt(len(finite))
    return MeanInterval(len(finite), mean, mean - half, mean + half)


def normal_quantile(comparisons: int = 1) -> float:
    """The two-sided quantile at `CONFIDENCE` of a standard normal variable.

    `comparisons`: of how many numbers the best was chosen. Intervals at `1 - (1 - CONFIDENCE) / comparisons` cover all
    of them together, and so the chosen one (Bonferroni).
    """
    return statistics.NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / (2 * comparisons))


@cache
def t_quantile(degrees: int, comparisons: int = 1) -> float:
    """The two-sided quantile of Student's t-distribution, see `normal_quantile`; by bisection of its distribution.

    Beyond `MAX_EXACT_DEGREES`, the Cornish-Fisher expansion.
    """
    z = normal_quantile(comparisons)
    if degrees > MAX_EXACT_DEGREES:
        return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    level = 1 - (1 - CONFIDENCE) / comparisons
    low, high = 0.0, math.pi / 2  # of arctan(t / sqrt(degrees))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_probability(middle, degrees) < level else (low, middle)
    return math.tan(high) * math.sqrt(degrees)


def _t_probability(angle: float, degrees: int) -> float:
    """P(|T| < t) with `angle = arctan(t / sqrt(degrees))` (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    is_odd = degrees % 2
    term = total = math.cos(angle) if is_odd else 1.0
    for number in range(2 if is_odd else 1, degrees - 1, 2):
        term *= number / (number + 1) * math.cos(angle) ** 2
        total += term
    if is_odd:
        return 2 / math.pi * (angle + (math.sin(angle) * total if degrees > 1 else 0.0))
    return math.sin(angle) * total
