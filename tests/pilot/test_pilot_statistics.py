"""Statistics of pilots with known answers: variance within and between prompts, intervals, the gradient's signal."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import pytest

from ippo_cli.pilot.statistics import (
    UNKNOWN,
    Estimate,
    fraction,
    jackknife,
    measure_repeatability,
    measure_signal,
    measure_spread,
)
from ippo_cli.runs.intervals import mean_interval


def test_jackknife_of_a_mean_is_the_t_interval() -> None:
    values = [1.0, 2.0, 4.0, 9.0]
    found, known = jackknife(values, fmean), mean_interval(values)
    assert known is not None
    assert (found.value, found.low, found.high) == pytest.approx((known.mean, known.low, known.high))


def test_jackknife_without_an_error_has_no_interval() -> None:
    assert math.isnan(jackknife([3.0], fmean).low)
    assert math.isnan(jackknife([], fmean).value)


def test_more_comparisons_need_more_evidence() -> None:
    """A value of 2.2 standard errors is above 0 alone, and not as one of four: their limit is 2.5."""
    found = Estimate(2.2, 2.2 - 1.96, 2.2 + 1.96)
    assert found.exceeds_zero(1)
    assert not found.exceeds_zero(4)
    assert Estimate(2.6, 2.6 - 1.96, 2.6 + 1.96).exceeds_zero(4)
    assert not UNKNOWN.exceeds_zero(1)


def test_few_prompts_need_more_evidence_for_several_comparisons() -> None:
    """With 3 degrees of freedom the limits are 3.18 standard errors for one number and 4.18 for the better of two."""
    found = Estimate(4.0, 4.0 - 3.18, 4.0 + 3.18, degrees=3).transform(lambda value: value / 2)
    assert found.exceeds_zero(1)
    assert not found.exceeds_zero(2)
    assert replace(found, degrees=None).exceeds_zero(2)


def test_spread_by_hand() -> None:
    """Means 1 and 5 have the variance 8, of which 2 / 2 is the error of means of two scores with variance 2."""
    spread = measure_spread([[0.0, 2.0], [4.0, 6.0]])
    assert spread.within.value == 2.0
    assert spread.between.value == 7.0
    assert spread.oracle.value == pytest.approx(7 / 9)
    assert spread.differing.value == 1.0
    assert (spread.mean.value, spread.prompts, spread.compared) == (3.0, 2, 2)


def test_spread_of_scores_that_depend_on_the_prompt() -> None:
    spread = measure_spread([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    assert spread.differing.value == 0
    assert spread.within.value == 0
    assert spread.oracle.value == 1.0


def test_spread_counts_prompts_with_several_scores() -> None:
    spread = measure_spread([[1.0], [], [0.0, 1.0], [0.1 + 0.2, 0.3]])
    assert (spread.prompts, spread.compared) == (3, 2)
    assert spread.differing.value == 0.5  # the difference of the last prompt's scores is rounding


def test_spread_counts_scores_that_differ_from_the_most_frequent_one() -> None:
    assert measure_spread([[0.0, 0.0], [0.0, 1.0], [2.0]]).uncommon.value == 0.4


def test_repeated_fraction_by_hand() -> None:
    """The variance within prompts is 2; two calls that differ by 1 have a variance of 1 / 2 of their own."""
    assert measure_repeatability([([0.0, 2.0], [(0.0, 1.0)]), ([4.0, 6.0], [(4.0, 3.0)])]).value == 0.75
    assert measure_repeatability([([0.0, 2.0], [(0.0, 0.0)]), ([4.0, 6.0], [])]).value == 1.0


def test_repeated_fraction_without_differences_is_unknown() -> None:
    assert math.isnan(measure_repeatability([([1.0, 1.0], [(1.0, 1.0)])]).value)
    assert math.isnan(measure_repeatability([([1.0, 2.0], [])]).value)


def test_spread_of_no_scores_is_unknown() -> None:
    spread = measure_spread([])
    assert math.isnan(spread.mean.value)
    assert math.isnan(spread.differing.value)


def test_fraction_is_inside_its_interval() -> None:
    found = fraction(1, 4)
    assert 0 < found.low < found.value == 0.25 < found.high < 1


def test_signal_of_orthogonal_noise() -> None:
    """Gradients (3, 2 e_i) of four parts: the signal is 9, and each part's noise 4."""
    products = [[13.0 if one == other else 9.0 for other in range(4)] for one in range(4)]
    found = measure_signal(products, rows=8, step_rows=2)
    assert found.squared_ratio.value == pytest.approx(9 / 4)
    assert found.norm == pytest.approx(math.sqrt(4 * 13 + 12 * 9) / 4)
    assert found.cosine == pytest.approx(4 * 9 / (2 * 13 + 2 * 9))
    assert measure_signal(products, rows=8, step_rows=6).squared_ratio.value == pytest.approx(3 * 9 / 4)


def test_halves_are_interleaved() -> None:
    """Parts 0 and 2 have one direction, 1 and 3 another: prompts of one half are not neighbours in the data."""
    products = [[float(one % 2 == other % 2) for other in range(4)] for one in range(4)]
    assert measure_signal(products, rows=4, step_rows=1).cosine == 0


def test_signal_of_unrelated_gradients_is_not_positive() -> None:
    products = [[1.0 if one == other else 0.0 for other in range(4)] for one in range(4)]
    found = measure_signal(products, rows=4, step_rows=1)
    assert found.squared_ratio.value == 0
    assert found.cosine == 0


def test_signal_without_gradients() -> None:
    found = measure_signal([[0.0, 0.0], [0.0, 0.0]], rows=4, step_rows=1)
    assert found.norm == 0
    assert math.isnan(found.squared_ratio.value)
