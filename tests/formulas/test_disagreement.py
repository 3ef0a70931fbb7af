"""Limits of disagreement, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from ippo_cli.formulas import disagreement_limits


def test_limits_by_hand() -> None:
    numbers = torch.tensor([3.0, 0.0, 4.0, 1.0, 2.0])
    assert disagreement_limits(numbers, 0.4, 0.2) == (2.0, 3.0)
    assert disagreement_limits(numbers, None, None) == (-math.inf, math.inf)
    assert disagreement_limits(numbers[:0], 0.4, 0.2) == (-math.inf, math.inf)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.99])
def test_equal_numbers_are_never_masked(fraction: float) -> None:
    numbers = torch.full((7,), 0.25)
    low, high = disagreement_limits(numbers, fraction, fraction)
    assert not ((numbers < low) | (numbers > high)).any()


def test_masked_fractions() -> None:
    numbers = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    low, high = disagreement_limits(numbers, 0.2, 0.35)
    assert ((numbers < low).sum().item(), (numbers > high).sum().item()) == (200, 350)
