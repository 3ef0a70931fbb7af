"""Confidence intervals, the paired test and pass@k, against enumeration and textbook values."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch

from ippo_cli.formulas.estimates import paired_share_interval, pass_at_k, share_interval, sign_flip_p, wilson


def test_pass_at_k_matches_enumeration() -> None:
    for n in range(1, 7):
        for right in range(n + 1):
            samples = [1] * right + [0] * (n - right)
            for k in range(1, n + 1):
                choices = [max(choice) for choice in combinations(samples, k)]
                found = pass_at_k(torch.tensor([right]), torch.tensor([n]), k)
                assert float(found) == pytest.approx(sum(choices) / len(choices)), (n, right, k)
    assert pass_at_k(torch.tensor([1]), torch.tensor([2]), 3).isnan().all(), "fewer samples than k"


def test_wilson_interval() -> None:
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert share_interval(torch.zeros(20)) == pytest.approx((0.0, 0.1611), abs=1e-4), (
        "0 of 20 does not exclude positive fractions"
    )
    values = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, math.nan])
    assert share_interval(values) == pytest.approx(wilson(2 / 7, 7))
    assert all(math.isnan(end) for end in share_interval(torch.tensor([math.nan])))


def test_effective_number_of_samples() -> None:
    alike = torch.tensor([1.0, 0.0, 0.0, 1.0])  # equal samples of a prompt carry no more information than one
    assert share_interval(alike, trials=64) == pytest.approx(wilson(0.5, 4))
    generator = torch.Generator().manual_seed(0)
    independent = (torch.rand(50, 16, generator=generator) < 0.3).double()
    low, high = share_interval(independent.mean(dim=1), trials=800)
    wanted = wilson(float(independent.mean()), 800)
    assert high - low == pytest.approx(wanted[1] - wanted[0], rel=0.25)
    assert share_interval(torch.full((5,), 0.5), trials=10) == pytest.approx(wilson(0.5, 5)), (
        "zero variance is no certainty"
    )


def test_interval_of_paired_shares() -> None:
    """Of 8 rows, 3 are higher and 1 is lower: (4 - 2) / 10, and variance (.4 + .2 - .04) / 10."""
    values = torch.tensor([1.0, 1.0, 1.0, -1.0, 0.0, 0.0, 0.0, 0.0, math.nan])
    half = 1.959964 * math.sqrt(0.056)
    assert paired_share_interval(values) == pytest.approx((0.2 - half, 0.2 + half))
    low, high = paired_share_interval(torch.zeros(8))
    assert low < -0.1 < 0.1 < high, "equal rows are no certainty"
    assert all(math.isnan(end) for end in paired_share_interval(values[8:]))


def test_sign_flip_test_exact_for_few_pairs() -> None:
    assert sign_flip_p(torch.tensor([0.5, 0.5, 0.5, 0.0]), seed=0) == 2 / 8
    flips = torch.tensor([1.0] * 8 + [-1.0] * 2 + [0.0] * 90)
    binomial = 2 * sum(math.comb(10, count) for count in range(3)) / 2**10
    assert sign_flip_p(flips, seed=0) == pytest.approx(binomial)
    assert sign_flip_p(torch.zeros(5), seed=0) == 1.0


def test_sign_flip_test_sampled_for_many_pairs() -> None:
    flips = torch.tensor([1.0] * 35 + [-1.0] * 15)
    binomial = 2 * sum(math.comb(50, count) for count in range(16)) / 2**50
    assert sign_flip_p(flips, seed=0) == pytest.approx(binomial, rel=0.25)
    assert sign_flip_p(torch.ones(60), seed=0) == pytest.approx(1 / 10_001)
