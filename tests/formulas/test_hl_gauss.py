"""Categorical values, by hand, against a second implementation, and by properties."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ippo_cli.formulas import ValueBins, bin_probabilities, expected_values, hl_gauss_loss

THREE = ValueBins(3, 0.0, 3.0)


def normal_cdf(z: float) -> float:
    return 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))


def plain_probabilities(y: float, bins: ValueBins) -> list[float]:
    """The same, number by number in float64."""
    y = min(max(y, bins.low), bins.high)
    width = (bins.high - bins.low) / bins.count
    limits = [normal_cdf((bins.low + k * width - y) / (bins.sigma * width)) for k in range(bins.count + 1)]
    return [(right - left) / (limits[-1] - limits[0]) for left, right in pairwise(limits)]


def test_probabilities_by_hand() -> None:
    # y in the middle: Phi(2/3) = .747507, Phi(2) = .977250; masses .229743 .495015 .229743 of .954500
    torch.testing.assert_close(
        bin_probabilities(torch.tensor([1.5]), THREE), torch.tensor([[0.240694, 0.518612, 0.240694]]), atol=1e-5, rtol=0
    )


def test_targets_beyond_the_range_are_those_of_its_ends() -> None:
    found = bin_probabilities(torch.tensor([-100.0, 0.0, 3.0, 1e6]), THREE)
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[3], found[2])
    # y = 0: masses Phi(4/3) - .5, Phi(8/3) - Phi(4/3), Phi(4) - Phi(8/3) of Phi(4) - .5
    torch.testing.assert_close(found[1], torch.tensor([0.817630, 0.174773, 0.007597]), atol=1e-5, rtol=0)


@settings(max_examples=50, deadline=None)
@given(
    y=st.floats(-12, 12, width=32),
    count=st.integers(2, 60),
    low=st.floats(-10, 0, width=32),
    span=st.floats(0.125, 20, width=32),
    sigma=st.sampled_from([0.25, 0.75, 2.0]),
)
def test_probabilities_match_plain_arithmetic(y: float, count: int, low: float, span: float, sigma: float) -> None:
    bins = ValueBins(count, low, low + span, sigma)
    found = bin_probabilities(torch.tensor([y], dtype=torch.float64), bins)[0]
    torch.testing.assert_close(
        found, torch.tensor(plain_probabilities(y, bins), dtype=torch.float64), atol=1e-9, rtol=0
    )
    assert found.sum().item() == pytest.approx(1.0)
    assert bin_probabilities(torch.tensor([y]), bins).isfinite().all()


def test_expected_values() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [0.0, math.log(2.0), 0.0], [-50.0, -50.0, 50.0]])
    torch.testing.assert_close(expected_values(logits, THREE), torch.tensor([1.5, 1.5, 2.5]))
    assert expected_values(torch.zeros(11), ValueBins(11, -1.0, 5.0)).item() == pytest.approx(2.0)


def test_minimum_of_the_loss_has_the_target_as_its_value() -> None:
    bins, target = ValueBins(50, -5.0, 5.0), torch.tensor([-1.3, 0.0, 2.71])
    logits = bin_probabilities(target, bins).clamp(min=1e-30).log()
    torch.testing.assert_close(expected_values(logits, bins), target, atol=2e-3, rtol=0)
    best = hl_gauss_loss(logits, target, bins)
    for number in range(5):
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(number))
        assert (hl_gauss_loss(logits + 0.1 * noise, target, bins) > best).all()


def test_loss_by_hand_and_its_gradient() -> None:
    torch.testing.assert_close(
        hl_gauss_loss(torch.zeros(2, 2), torch.tensor([0.3, 7.0]), ValueBins(2, 0.0, 1.0)),
        torch.full((2,), math.log(2.0)),
    )
    logits = torch.tensor([[0.5, -1.0, 0.2]], requires_grad=True)
    hl_gauss_loss(logits, torch.tensor([1.5]), THREE).sum().backward()
    expected = logits.detach().softmax(-1) - bin_probabilities(torch.tensor([1.5]), THREE)
    torch.testing.assert_close(logits.grad, expected)


@pytest.mark.parametrize("bins", [(1, 0.0, 1.0, 0.75), (4, 1.0, 1.0, 0.75), (4, 0.0, 1.0, 0.0)])
def test_invalid_bins_rejected(bins: tuple[int, float, float, float]) -> None:
    with pytest.raises(ValueError, match="needs count"):
        ValueBins(*bins)
