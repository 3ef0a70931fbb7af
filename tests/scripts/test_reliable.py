"""Statistics of few runs, compared with numbers computed by hand and with rliable if it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

from reliable import (
    bootstrap,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    t_interval,
    welch_interval,
)

SCORES = np.array([[0.0, 0.9], [0.2, 0.5], [0.4, 0.1]])
OTHER_SCORES = np.array([[0.1, 0.9], [0.2, 0.6]])


def test_interquartile_mean() -> None:
    assert interquartile_mean(np.array([[8.0, 1.0], [2.0, 100.0]])) == pytest.approx(5.0)
    assert interquartile_mean(SCORES) == pytest.approx((0.1 + 0.2 + 0.4 + 0.5) / 4), "one of six is removed at each end"
    assert interquartile_mean(np.array([[1.0, 2.0, 6.0]])) == pytest.approx(3.0), "none of three is removed"


def test_t_interval_contains_the_mean_in_95_percent_of_samples() -> None:
    assert t_interval([1.0, 2.0]) == pytest.approx((1.5 - 12.706 * 0.5, 1.5 + 12.706 * 0.5))
    source = np.random.default_rng(0)
    for size in (2, 3, 5, 10):
        intervals = [t_interval(source.normal(size=size).tolist()) for _ in range(4000)]
        assert sum(low < 0 < high for low, high in intervals) / 4000 == pytest.approx(0.95, abs=0.012)


def test_welch_interval_of_differences_contains_them_in_95_percent_of_samples() -> None:
    scores, others = np.array([[1.0, 3.0], [2.0, 6.0]]), np.array([[1.0], [1.0]])
    half = 12.706 * 2**0.5 * 2**-0.5  # means of runs: 2 and 4, and the other variance is 0
    assert welch_interval([scores, others], (1, -1)) == pytest.approx((2 - half, 2 + half))
    source = np.random.default_rng(0)
    for size in (3, 5):
        pairs = [(source.normal(1.0, 1.0, (size, 1)), source.normal(0.0, 1.0, (size, 1))) for _ in range(4000)]
        intervals = [welch_interval(pair, (1, -1)) for pair in pairs]
        assert 0.94 < sum(low < 1 < high for low, high in intervals) / 4000 < 0.99


def test_probability_of_improvement_counts_ties_half() -> None:
    # First task: 0 beats none, .2 beats .1 and ties .2, .4 beats both. Second: .9 ties .9 and beats .6; the rest lose.
    assert probability_of_improvement(SCORES, OTHER_SCORES) == pytest.approx((3.5 / 6 + 1.5 / 6) / 2)
    assert probability_of_improvement(OTHER_SCORES, SCORES) == pytest.approx(1 - (3.5 / 6 + 1.5 / 6) / 2)
    assert probability_of_improvement(SCORES, SCORES) == 0.5


def test_performance_profile() -> None:
    assert performance_profile(SCORES, [-1.0, 0.1, 0.45, 0.9]) == pytest.approx([1.0, 4 / 6, 2 / 6, 0.0])


def test_bootstrap_is_stratified_by_task() -> None:
    scores = np.array([[0.0, 10.0], [1.0, 11.0]])  # a task's mean is 0, .5 or 1 above its lowest run
    low, high = bootstrap(lambda sample: float(sample[:, 1].mean() - sample[:, 0].mean()), scores)
    assert (low, high) == (pytest.approx(9.0), pytest.approx(11.0))
    assert bootstrap(interquartile_mean, np.array([[0.1, 0.5]])) == (pytest.approx(0.3), pytest.approx(0.3))


def test_bootstrap_interval_is_correct_and_deterministic() -> None:
    scores = np.random.default_rng(1).normal(size=(50, 4))
    low, high = bootstrap(lambda sample: float(sample.mean()), scores)
    half = 1.96 * scores.std(axis=0).mean() / 200**0.5
    assert [low, high] == pytest.approx([scores.mean() - half, scores.mean() + half], abs=0.03)
    assert bootstrap(lambda sample: float(sample.mean()), scores) == (low, high)


def test_statistics_match_rliable() -> None:
    rliable = pytest.importorskip("rliable.metrics", reason="rliable is not installed", exc_type=Exception)
    assert interquartile_mean(SCORES) == pytest.approx(rliable.aggregate_iqm(SCORES))
    expected = rliable.probability_of_improvement(SCORES, OTHER_SCORES)
    assert probability_of_improvement(SCORES, OTHER_SCORES) == pytest.approx(expected)
