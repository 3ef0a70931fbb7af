"""Statistics of a pilot over prompts: fractions, variance within and between prompts, and the gradient's signal.

Prompts, or parts of the buffer with whole prompts, are the sampled units of all intervals, as in evaluations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance
from typing import TypeVar

from ippo_cli.formulas.estimates import wilson
from ippo_cli.runs.intervals import normal_quantile, t_quantile

T = TypeVar("T")
ROUNDING = 1e-9  # differences below this fraction of the largest number are rounding


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval; NaN where nothing is known."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    degrees: int | None = None  # of freedom, of a t-interval

    def exceeds_zero(self, comparisons: int) -> bool:
        """Whether it is above 0 beyond chance, as one of several numbers that are compared with 0 (Bonferroni)."""
        factor = normal_quantile(comparisons) / normal_quantile()
        if self.degrees is not None:
            factor = t_quantile(self.degrees, comparisons) / t_quantile(self.degrees)
        return self.value > (self.value - self.low) * factor

    def transform(self, function: Callable[[float], float]) -> Estimate:
        """The estimate of an increasing function of the number."""
        return replace(self, value=function(self.value), low=function(self.low), high=function(self.high))


UNKNOWN = Estimate()


def jackknife(units: Sequence[T], statistic: Callable[[Sequence[T]], float]) -> Estimate:
    """A statistic of the units with a t-interval from the jackknife's standard error (Efron and Stein 1981).

    For a mean this is the usual t-interval. Without a finite value for each subset, the interval is unknown.
    """
    value = statistic(units) if units else math.nan
    count = len(units)
    if count < 2 or not math.isfinite(value):
        return Estimate(value)
    without = [statistic([*units[:place], *units[place + 1 :]]) for place in range(count)]
    if not all(map(math.isfinite, without)):
        return Estimate(value)
    center = fmean(without)
    error = math.sqrt((count - 1) / count * sum((other - center) ** 2 for other in without))
    half = t_quantile(count - 1) * error
    return Estimate(value, value - half, value + half, count - 1)


def fraction(true: int, count: int) -> Estimate:
    """A fraction of independent trials with Wilson's interval."""
    return Estimate(true / count, *wilson(true / count, count)) if count else UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSpread:
    """How scores vary within and between prompts."""

    mean: Estimate
    std: float  # of all scores
    within: Estimate  # variance of the scores of one prompt, mean over prompts
    between: Estimate  # variance of the expected scores of prompts
    differing: Estimate  # fraction of the prompts with several scores that differ
    oracle: Estimate  # fraction of the variance that the expected score of each prompt explains
    uncommon: Estimate  # fraction of the scores that differ from the most frequent one
    prompts: int
    compared: int  # prompts with several scores


def measure_spread(groups: Sequence[Sequence[float]]) -> ScoreSpread:
    """The spread of finite scores, by prompt.

    Two prompts with scores (0, 2) and (4, 6) have the variances 2 within and 8 - 2 / 2 = 7 between prompts: the latter
    is that of the means less their sampling error (one-way random effects, Searle et al. 1992, section 3.5).
    """
    groups = [group for group in groups if group]
    scores = [score for group in groups for score in group]
    several = [group for group in groups if len(group) > 1]
    return ScoreSpread(
        mean=jackknife(groups, lambda units: fmean(fmean(unit) for unit in units)),
        std=math.sqrt(variance(scores)) if len(scores) > 1 else math.nan,
        within=jackknife(several, lambda units: fmean(map(variance, units))),
        between=jackknife(several, _between_variance),
        differing=fraction(sum(map(_differ, several)), len(several)),
        oracle=jackknife(several, _explained_by_prompt),
        uncommon=fraction(len(scores) - max(Counter(scores).values(), default=0), len(scores)),
        prompts=len(groups),
        compared=len(several),
    )


def _differ(scores: Sequence[float]) -> bool:
    return max(scores) - min(scores) > ROUNDING * max(map(abs, scores))


def _between_variance(groups: Sequence[Sequence[float]]) -> float:
    if len(groups) < 2:
        return math.nan
    error = fmean(variance(group) / len(group) for group in groups)
    return max(variance([fmean(group) for group in groups]) - error, 0.0)


def _explained_by_prompt(groups: Sequence[Sequence[float]]) -> float:
    """The variance between prompts as a fraction of that between and within prompts; NaN without any variance."""
    between, within = _between_variance(groups), fmean(map(variance, groups))
    largest = max(abs(score) for group in groups for score in group)
    if not between + within > (ROUNDING * largest) ** 2:
        return math.nan
    return between / (between + within)


ScoredTwice = tuple[Sequence[float], Sequence[tuple[float, float]]]
"""The scores of one prompt's responses, and both scores of those that were scored twice."""


def measure_repeatability(prompts: Sequence[ScoredTwice]) -> Estimate:
    """The fraction of the variance within prompts that another call of the reward on the same responses repeats.

    1 for a reward without chance, about 0 for one that draws scores at random: half of the mean squared difference of
    two scores of a response is the variance that the reward adds. NaN without differences within prompts.
    """
    return jackknife([one for one in prompts if len(one[0]) > 1 or one[1]], _repeated_fraction)


def _repeated_fraction(prompts: Sequence[ScoredTwice]) -> float:
    squares = [fmean((one - other) ** 2 for one, other in pairs) for _, pairs in prompts if pairs]
    within = [variance(scores) for scores, _ in prompts if len(scores) > 1]
    largest = max((abs(score) for scores, _ in prompts for score in scores), default=0.0)
    if not squares or not within or fmean(within) <= (ROUNDING * largest) ** 2:
        return math.nan
    return 1 - fmean(squares) / 2 / fmean(within)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSignal:
    """The expected gradient of a policy's loss, and its noise in one optimizer step."""

    norm: float  # of the mean gradient of the sample
    cosine: float  # of the gradients of two halves of the sample
    squared_ratio: Estimate  # squared norm of the expected gradient, by the variance of a step's gradient


def measure_signal(products: Sequence[Sequence[float]], rows: int, step_rows: int) -> GradientSignal:
    """The signal from scalar products of the gradients of parts of a sample, `rows` together.

    Products of different parts estimate the squared norm of the expected gradient, and squared norms of single parts
    exceed it by the part's noise (McCandlish et al. 2018, appendix A.1). The interval is that of their quotient, the
    correlation r of two parts: the ratio is `r / (1 - r)`. `step_rows`: rows of an optimizer step.
    """
    parts = list(range(len(products)))
    scale = step_rows * len(products) / rows  # the variance of a gradient is inverse to its number of rows
    halves = [[place for place in parts if place % 2 == half] for half in (0, 1)]
    norms = [_block_sum(products, half, half) for half in halves]
    norm = math.sqrt(norms[0] * norms[1]) if min(norms) > 0 else 0.0
    correlation = jackknife(parts, lambda places: _part_correlation(products, places))
    return GradientSignal(
        norm=math.sqrt(max(_block_sum(products, parts, parts), 0.0)) / len(products),
        cosine=_block_sum(products, *halves) / norm if norm > 0 else math.nan,
        squared_ratio=correlation.transform(lambda value: scale * _odds(value)),
    )


def _block_sum(products: Sequence[Sequence[float]], left: Sequence[int], right: Sequence[int]) -> float:
    return sum(products[one][other] for one in left for other in right)


def _part_correlation(products: Sequence[Sequence[float]], places: Sequence[int]) -> float:
    """Mean product of two parts by the mean square of one; NaN for fewer than two parts, or without gradients."""
    squares = fmean(products[place][place] for place in places)
    if len(places) < 2 or squares <= 0:
        return math.nan
    return fmean(products[one][other] for one in places for other in places if one != other) / squares


def _odds(correlation: float) -> float:
    return math.inf if correlation >= 1 - ROUNDING else correlation / (1 - correlation)
