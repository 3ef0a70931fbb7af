"""Means with t-intervals over runs that differ only in the seed. Does not import torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
# Two-sided quantiles of Student's t-distribution at `CONFIDENCE`, for 1 to 30 degrees of freedom.
T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
NORMAL_QUANTILE = 1.95996


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean over runs with a t-interval, which is None for one run."""

    count: int
    mean: float
    low: float | None
    high: float | None


def mean_interval(values: Sequence[float]) -> MeanInterval | None:
    """Mean and t-interval of the finite values; None without one."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    mean = statistics.fmean(finite)
    if len(finite) == 1:
        return MeanInterval(1, mean, None, None)
    half = t_quantile(len(finite) - 1) * statistics.stdev(finite) / math.sqrt(len(finite))
    return MeanInterval(len(finite), mean, mean - half, mean + half)


def t_quantile(degrees: int) -> float:
    """The two-sided t-quantile at `CONFIDENCE`; beyond the table, the Cornish-Fisher expansion."""
    if degrees <= len(T_QUANTILES):
        return T_QUANTILES[degrees - 1]
    z = NORMAL_QUANTILE
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
