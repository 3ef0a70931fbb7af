"""Shapley values."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from ippo_cli.formulas import shapley_values


def test_two_members() -> None:
    scores = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 4.0], [3.0, 5.0]])
    torch.testing.assert_close(shapley_values(scores), torch.tensor([[2.0, 0.5], [1.0, 3.5]]))


def test_mean_over_orders_of_joining() -> None:
    scores = torch.rand(16, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.zeros(4, 3, dtype=torch.float64)
    for order in permutations(range(4)):
        coalition = 0
        for member in order:
            joined = coalition | 1 << member
            expected[member] += (scores[joined] - scores[coalition]) / 24
            coalition = joined
    found = shapley_values(scores)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(dim=0), scores[-1] - scores[0])


def test_member_without_influence_has_exactly_zero() -> None:
    scores = torch.rand(4, 5, generator=torch.Generator().manual_seed(1))
    found = shapley_values(scores.repeat_interleave(2, dim=0))  # the first member changes nothing
    assert torch.equal(found[0], torch.zeros(5))


def test_wrong_number_of_coalitions_rejected() -> None:
    with pytest.raises(ValueError, match="3 coalitions"):
        shapley_values(torch.zeros(3, 1))
