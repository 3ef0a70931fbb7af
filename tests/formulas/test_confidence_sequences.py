"""Betting confidence sequences against a slow calculation, simulated coverage, and fixed-size t-intervals."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from ippo_cli.formulas.confidence_sequences import (
    confidence_sequence,
    hedged_log_capital,
    normal_confidence_sequence,
)
from ippo_cli.runs.intervals import t_quantile

ALPHA = 0.05


def capital(values: Sequence[float], mean: float, alpha: float, most: float = 0.95) -> tuple[float, float]:
    """Products of both gamblers, value by value."""
    rising = falling = 1.0
    seen: list[float] = []
    for value in values:
        squares = 0.25
        for end in range(1, len(seen) + 1):
            squares += (seen[end - 1] - (0.5 + math.fsum(seen[:end])) / (end + 1)) ** 2
        time = len(seen) + 1
        bet = math.sqrt(2 * math.log(2 / alpha) / (squares / time * time * math.log(1 + time)))
        rising *= 1 + min(bet, most / mean) * (value - mean)
        falling *= 1 - min(bet, most / (1 - mean)) * (value - mean)
        seen.append(value)
    return rising, falling


def bounds(values: Sequence[float], alpha: float) -> list[tuple[float, float]]:
    """Bounds after each value: each tenth of an interval is narrowed to the one in which a gambler reaches 2/alpha."""
    found, low, high = [], 0.0, 1.0
    for end in range(1, len(values) + 1):
        low = max(low, _last(lambda mean, end=end: capital(values[:end], mean, alpha)[0] >= 2 / alpha))
        high = min(high, 1 - _last(lambda gap, end=end: capital(values[:end], 1 - gap, alpha)[1] >= 2 / alpha))
        found.append((low, high))
    return found


def _last(holds) -> float:
    """The largest number up to which a decreasing condition holds, to 13 digits; 0 if it never does."""
    start, width = 0.0, 0.1
    while width > 1e-14:
        start = max([start, *(place for step in range(1, 10) if holds(place := start + step * width))])
        width /= 10
    return start


@pytest.mark.parametrize("alpha", [0.05, 0.007])
def test_bounds_match_a_slow_calculation(alpha: float) -> None:
    generator = random.Random(0)
    for low, high in ((0.0, 1.0), (0.6, 0.95), (0.1, 0.2), (0.9, 1.0)):
        values = [generator.uniform(low, high) for _ in range(11)]
        lower, upper = confidence_sequence(torch.tensor(values, dtype=torch.double), alpha)
        wanted = bounds(values, alpha)
        assert lower.tolist() == pytest.approx([one for one, _ in wanted], abs=1e-10)
        assert upper.tolist() == pytest.approx([other for _, other in wanted], abs=1e-10)


def test_bounds_are_where_the_capital_reaches_the_limit() -> None:
    values = torch.rand(3, 12, generator=torch.Generator().manual_seed(1), dtype=torch.double) * 0.3 + 0.6
    lower, upper = confidence_sequence(values, ALPHA)
    at_bound = torch.stack([hedged_log_capital(values, lower[:, end], ALPHA)[:, end] for end in range(12)], dim=1)
    is_new = lower > torch.cat([torch.zeros(3, 1), lower[:, :-1]], dim=1)
    assert is_new.any()
    torch.testing.assert_close(at_bound[is_new], torch.full_like(at_bound[is_new], -math.log(ALPHA)))
    assert (upper[:, -1] > values.mean(1)).all()
    assert (lower.diff(dim=1) >= 0).all(), "an interval never widens"


def null_values(tasks: int, seeds: int, generator: torch.Generator) -> Tensor:
    """Values with mean 1/2, `[6 tasks, seeds]`: normal with small and large deviations, two-point, skewed, uniform."""
    shape = (tasks, seeds)
    normal = torch.randn(*shape, generator=generator, dtype=torch.double)
    uniform = torch.rand(*shape, generator=generator, dtype=torch.double)
    rare = (uniform < 0.1).double()  # 1 with probability .1, else .444
    kinds = [0.5 + 0.02 * normal, 0.5 + 0.15 * normal, (uniform < 0.5).double(), rare + (1 - rare) * 4 / 9, uniform]
    return torch.cat([*kinds, 1 - kinds[3]]).clamp(0, 1)


def test_false_verdicts_are_at_most_alpha_whenever_one_looks() -> None:
    """Verdicts after each of 30 seeds; a t-interval that is looked at as often has several times as many."""
    values = null_values(500, 30, torch.Generator().manual_seed(2))
    reached = hedged_log_capital(values, torch.full((len(values),), 0.5), ALPHA) >= -math.log(ALPHA)
    by_kind = reached.any(dim=1).view(6, 500).double().mean(dim=1)
    assert by_kind.max() <= ALPHA, by_kind
    assert by_kind.max() >= ALPHA / 10, "the bets are large enough to be wrong sometimes"
    looks = torch.stack([_t_excludes(values[:, :seeds]) for seeds in range(3, 31)], dim=1)
    assert looks.any(dim=1).view(6, 500).double().mean(dim=1)[:2].min() > 3 * ALPHA


def _t_excludes(values: Tensor) -> Tensor:
    count = values.shape[1]
    half = t_quantile(count - 1) * values.std(dim=1) / math.sqrt(count)
    return (values.mean(dim=1) - 0.5).abs() > half


def test_intervals_cover_a_mean_that_is_not_one_half() -> None:
    generator = torch.Generator().manual_seed(3)
    values = 0.8 + 0.2 * (torch.rand(300, 20, generator=generator, dtype=torch.double) * 2 - 1)
    lower, upper = confidence_sequence(values, ALPHA)
    missed = ((lower > 0.8) | (upper < 0.8)).any(dim=1)
    assert missed.double().mean() <= ALPHA


@pytest.mark.parametrize(("difference", "deviation", "most"), [(1.0, 0.0, 6), (0.8, 0.1, 7), (0.5, 0.1, 10)])
def test_clear_effects_are_decided_with_few_seeds(difference: float, deviation: float, most: int) -> None:
    """Differences of scores from 0 to 1; no bounded sequence has a verdict at level .05 before the sixth seed."""
    noise = torch.randn(400, 30, generator=torch.Generator().manual_seed(4), dtype=torch.double)
    values = (0.5 + (difference + deviation * noise) / 2).clamp(0, 1)
    reached = hedged_log_capital(values, torch.full((400,), 0.5), ALPHA) >= -math.log(ALPHA)
    first = reached.double().argmax(dim=1) + 1
    assert reached.any(dim=1).all()
    assert float(first.double().median()) <= most
    assert first.min() >= 6


def likelihood_ratio(values: Sequence[float], mean: float, variance: float = 10.0) -> float:
    """Of the values around `mean`: integrals over deviations and effects, by the trapezoid rule, of normal densities.

    Deviations have the density 1 / deviation, effects a normal one.
    """
    shifted = [value - mean for value in values]
    effects = [8 * math.sqrt(variance) * (step / 400 - 1) for step in range(801)]
    logs = [-12 + 24 * step / 600 for step in range(601)]
    squares, total = math.fsum(value**2 for value in shifted), math.fsum(shifted)

    def density(effect: float) -> float:
        scales = torch.tensor(logs, dtype=torch.double)
        spread = squares * (-2 * scales).exp() - 2 * effect * total * (-scales).exp() + len(values) * effect**2
        return float((-len(values) * scales - spread / 2).exp().sum())

    weights = [math.exp(-(effect**2) / (2 * variance)) for effect in effects]
    mixed = math.fsum(weight * density(effect) for effect, weight in zip(effects, weights, strict=True))
    return mixed / math.fsum(weights) / density(0.0)


def test_normal_bounds_are_where_the_likelihood_ratio_reaches_the_limit() -> None:
    values = [0.4, 0.9, 0.2, 0.7, 0.5, 0.65]
    lower, upper = normal_confidence_sequence(torch.tensor(values), ALPHA)
    assert lower[:2].tolist() == [-math.inf, -math.inf]
    for count in (4, 6):
        low, high = normal_bounds(values[:count])
        assert likelihood_ratio(values[:count], low) == pytest.approx(1 / ALPHA, rel=1e-6)
        assert likelihood_ratio(values[:count], high) == pytest.approx(1 / ALPHA, rel=1e-6)
    all_bounds = [normal_bounds(values[:count]) for count in range(3, 7)]
    assert float(lower[-1]) == pytest.approx(max(low for low, _ in all_bounds), abs=1e-6)
    assert float(upper[-1]) == pytest.approx(min(high for _, high in all_bounds), abs=1e-6)


def normal_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Bounds from these values alone: the t statistic at which the ratio is 1/alpha, by bisection."""
    count = len(values)
    mean = math.fsum(values) / count
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))

    def ratio(t: float) -> float:
        inner, outer = 1 + t * t / (count - 1), 1 + t * t / ((count - 1) * (1 + 10 * count))
        return (inner / outer) ** (count / 2) / math.sqrt(1 + 10 * count)

    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(middle) < 1 / ALPHA else (low, middle)
    half = low * deviation / math.sqrt(count) if high < 9e5 else math.inf
    return mean - half, mean + half


def test_normal_sequence_is_rarely_wrong_and_early_right() -> None:
    noise = torch.randn(3000, 30, generator=torch.Generator().manual_seed(6), dtype=torch.double)
    lower, upper = normal_confidence_sequence(noise, ALPHA)
    wrong = ((lower > 0) | (upper < 0)).any(dim=1).double().mean()
    assert ALPHA / 10 < wrong <= ALPHA
    lower, _ = normal_confidence_sequence(noise + 5, ALPHA)
    first = (lower > 0).double().argmax(dim=1) + 1
    assert (lower > 0).any(dim=1).all()
    assert float(first.double().median()) <= 5
