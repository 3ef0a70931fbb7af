"""Statistics of a metric over the last iterations; values that are NaN are left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

RECENT = 8  # rows of a recent mean
FEW = 4  # rows of a mean that one iteration may change
LEAST = 1e-3  # values below it count as it in logarithms


def mean(values: Sequence[float]) -> float:
    """The mean of the known values; NaN without any."""
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else math.nan


def recent_mean(values: Sequence[float], count: int = RECENT) -> float:
    """The mean of the last values; NaN without any."""
    return mean(values[-count:])


def slope(values: Sequence[float], count: int = 12) -> float:
    """Slope of the least-squares line through the last values, per iteration; NaN for fewer than four."""
    known = [(place, value) for place, value in enumerate(values[-count:]) if value == value]
    if len(known) < FEW:
        return math.nan
    middle, level = (sum(column) / len(known) for column in zip(*known, strict=True))
    spread = sum((place - middle) ** 2 for place, _ in known)
    return sum((place - middle) * (value - level) for place, value in known) / spread


def log_slope(values: Sequence[float]) -> float:
    """Slope of the logarithm of the last values, per iteration; NaN for fewer than four."""
    return slope([math.log(max(value, LEAST)) if value == value else value for value in values])


def log_growth(values: Sequence[float]) -> float:
    """Logarithm of the recent mean over the median of all values."""
    known = [value for value in values if value == value]
    now = recent_mean(values, FEW)
    usual = median(known) if known else math.nan
    return math.log(now / usual) if now > 0 and usual > 0 else math.nan


def score_fall(means: Sequence[float], deviations: Sequence[float]) -> float:
    """How far the mean score is below its best mean of four iterations, in standard deviations of scores."""
    spread = _spread(deviations)
    known = [value for value in means if value == value]
    blocks = [sum(known[start : start + FEW]) / FEW for start in range(len(known) - FEW + 1)]
    return (max(blocks) - blocks[-1]) / spread if blocks and spread > 0 else math.nan


def score_gain(means: Sequence[float], deviations: Sequence[float]) -> float:
    """The recent mean score minus the first one of the window, in standard deviations of scores."""
    spread = _spread(deviations)
    return (recent_mean(means, FEW) - recent_mean(means[:FEW], FEW)) / spread if spread > 0 else math.nan


def score_decline(means: Sequence[float], deviations: Sequence[float]) -> float:
    """Fall of the mean score per iteration, in standard deviations of scores."""
    spread = _spread(deviations)
    return -slope(means) / spread if spread > 0 else math.nan


def _spread(deviations: Sequence[float]) -> float:
    known = [value for value in deviations if value == value]
    return max(known, default=math.nan)


def log_level(values: Sequence[float], least: float) -> float:
    """Decimal logarithm of the recent mean, at least `least`."""
    level = recent_mean(values)
    return math.log10(max(level, least)) if level == level else math.nan


def change_of_log(values: Sequence[float]) -> float:
    """Logarithm of the recent mean over the mean of the window's first values."""
    before, now = recent_mean(values[:FEW], FEW), recent_mean(values, FEW)
    return math.log(now / before) if before > 0 and now > 0 else math.nan


def lost_fraction(values: Sequence[float]) -> float:
    """Logarithm of the window's highest value over the recent mean: 0 at the highest value."""
    now, most = recent_mean(values, FEW), max((value for value in values if value == value), default=math.nan)
    return math.log(max(most, LEAST) / max(now, LEAST)) if now == now else math.nan


def regained_fraction(values: Sequence[float]) -> float:
    """Logarithm of the recent mean over the window's lowest value: 0 at the lowest value."""
    now, least = recent_mean(values, FEW), min((value for value in values if value == value), default=math.nan)
    return math.log(max(now, LEAST) / max(least, LEAST)) if now == now else math.nan


def mean_jump(values: Sequence[float]) -> float:
    """Mean absolute change between the last iterations."""
    return mean([abs(after - before) for before, after in pairwise(values[-RECENT - 1 :])])


def spike_fraction(spikes: Sequence[float], steps: Sequence[float]) -> float:
    """Optimizer steps with a spike of the gradient norm, as a fraction of recent steps."""
    pairs = [
        (one, all_) for one, all_ in zip(spikes[-RECENT:], steps[-RECENT:], strict=True) if one + all_ == one + all_
    ]
    count = sum(all_ for _, all_ in pairs)
    return sum(one for one, _ in pairs) / count if count else math.nan
