"""Statistics of few runs: against numbers that were worked out by hand, and against the library where it is."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

from reliable import bootstrap, interquartile_mean, performance_profile, probability_of_improvement

ONE = np.array([[0.0, 0.9], [0.2, 0.5], [0.4, 0.1]])
OTHER = np.array([[0.1, 0.9], [0.2, 0.6]])


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end_rounded_down() -> None:
    assert interquartile_mean(np.array([[8.0, 1.0], [2.0, 100.0]])) == pytest.approx(5.0)
    assert interquartile_mean(ONE) == pytest.approx((0.1 + 0.2 + 0.4 + 0.5) / 4), "one of six at each end"
    assert interquartile_mean(np.array([[1.0, 2.0, 6.0]])) == pytest.approx(3.0), "none of three"


def test_an_improvement_counts_pairs_of_runs_on_each_task_and_ties_by_half() -> None:
    # First task: 0 beats none, .2 beats .1 and ties .2, .4 beats both. Second: .9 ties .9 and beats .6; the rest lose.
    assert probability_of_improvement(ONE, OTHER) == pytest.approx((3.5 / 6 + 1.5 / 6) / 2)
    assert probability_of_improvement(OTHER, ONE) == pytest.approx(1 - (3.5 / 6 + 1.5 / 6) / 2)
    assert probability_of_improvement(ONE, ONE) == 0.5


def test_a_profile_is_the_share_of_runs_above_each_threshold() -> None:
    assert performance_profile(ONE, [-1.0, 0.1, 0.45, 0.9]) == pytest.approx([1.0, 4 / 6, 2 / 6, 0.0])


def test_runs_are_drawn_within_their_task() -> None:
    apart = np.array([[0.0, 10.0], [1.0, 11.0]])  # a task's mean is 0, .5 or 1 above its lowest run
    low, high = bootstrap(lambda scores: float(scores[:, 1].mean() - scores[:, 0].mean()), apart)
    assert (low, high) == (pytest.approx(9.0), pytest.approx(11.0))
    assert bootstrap(interquartile_mean, np.array([[0.1, 0.5]])) == (pytest.approx(0.3), pytest.approx(0.3))


def test_an_interval_covers_what_it_says_and_is_the_same_every_time() -> None:
    scores = np.random.default_rng(1).normal(size=(50, 4))
    low, high = bootstrap(lambda drawn: float(drawn.mean()), scores)
    half = 1.96 * scores.std(axis=0).mean() / 200**0.5
    assert [low, high] == pytest.approx([scores.mean() - half, scores.mean() + half], abs=0.03)
    assert bootstrap(lambda drawn: float(drawn.mean()), scores) == (low, high)


def test_the_numbers_are_those_of_the_library() -> None:
    rliable = pytest.importorskip("rliable.metrics", reason="rliable is not installed", exc_type=Exception)
    assert interquartile_mean(ONE) == pytest.approx(rliable.aggregate_iqm(ONE))
    assert probability_of_improvement(ONE, OTHER) == pytest.approx(rliable.probability_of_improvement(ONE, OTHER))
