"""Betting confidence sequences against a slow calculation, simulated coverage, and fixed-size t-intervals."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from ippo_cli.formulas.confidence_sequences import confidence_sequence, hedged_log_capital
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
