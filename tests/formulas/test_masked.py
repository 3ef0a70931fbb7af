"""Masked reductions and whitening, against hand-worked numbers and torch on the kept entries."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ippo_cli.formulas import masked_mean, masked_sum, masked_var, masked_whiten

X = torch.tensor([[1.0, 2.0, 100.0], [4.0, 5.0, 8.0]])
MASK = torch.tensor([[1, 1, 0], [1, 0, 1]])  # keeps 1 2 4 8


def test_sum_mean_and_variance_by_hand() -> None:
    assert masked_sum(X, MASK).item() == 15.0
    assert masked_mean(X, MASK).item() == 3.75
    assert masked_var(X, MASK).item() == pytest.approx(28.75 / 3, abs=1e-6)


def test_whitening_by_hand() -> None:
    std = math.sqrt(28.75 / 3)
    expected = torch.tensor([[-2.75, -1.75, 0.0], [0.25, 0.0, 4.25]]) / std
    torch.testing.assert_close(masked_whiten(X, MASK), expected, atol=1e-6, rtol=0)


def test_whitening_without_center() -> None:
    std = math.sqrt(28.75 / 3)
    expected = torch.tensor([[1.0, 2.0, 0.0], [4.0, 0.0, 8.0]]) / std
    torch.testing.assert_close(masked_whiten(X, MASK, center=False), expected, atol=1e-6, rtol=0)


def test_whitening_without_scale() -> None:
    expected = torch.tensor([[-2.75, -1.75, 0.0], [0.25, 0.0, 4.25]])
    torch.testing.assert_close(masked_whiten(X, MASK, scale=False), expected, atol=1e-6, rtol=0)


def test_whitening_with_external_moments() -> None:
    expected = torch.tensor([[-4.5, -4.0, 0.0], [-3.0, 0.0, -1.0]])
    torch.testing.assert_close(masked_whiten(X, MASK, moments=(10.0, 4.0)), expected, atol=1e-6, rtol=0)
    as_tensors = (torch.tensor(10.0), torch.tensor(4.0))
    torch.testing.assert_close(masked_whiten(X, MASK, moments=as_tensors), expected, atol=1e-6, rtol=0)
    halves = torch.tensor([[0.5, 1.0, 0.0], [2.0, 0.0, 4.0]])
    torch.testing.assert_close(masked_whiten(X, MASK, center=False, moments=(10.0, 4.0)), halves, atol=1e-6, rtol=0)


@pytest.mark.parametrize("value", [0.1, 1 / 3, -7.7, 12345.678, 1e-6])
@pytest.mark.parametrize("kept", [1, 2, 7, 1000])
def test_whitening_of_equal_entries_is_zero(value: float, kept: int) -> None:
    x = torch.full((1, kept + 3), value)
    mask = torch.arange(kept + 3)[None] < kept
    assert masked_var(x, mask).item() == 0.0
    assert not masked_whiten(x, mask).any()


def test_whitening_with_zero_external_variance() -> None:
    x = torch.full((1, 3), 0.7)
    rounded_mean = torch.tensor(0.7) * (1 + 1e-7)
    assert not masked_whiten(x, torch.ones(1, 3), moments=(rounded_mean, 0.0)).any()


@pytest.mark.parametrize("kept", [0, 1])
def test_variance_of_fewer_than_two_entries(kept: int) -> None:
    mask = torch.arange(3)[None] < kept
    assert masked_var(X[:1], mask).item() == 0.0
    assert masked_mean(X[:1], mask).item() == float(kept)
    assert not masked_whiten(X[:1], mask).any()


def test_empty_tensor() -> None:
    empty, mask = torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.bool)
    assert masked_sum(empty, mask).item() == masked_mean(empty, mask).item() == masked_var(empty, mask).item() == 0.0
    assert masked_whiten(empty, mask).shape == (2, 0)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_nan_off_mask_ignored(ragged, seed: int) -> None:
    batch = ragged(seed)
    x = batch.noise() * 3 + 5
    kept = x[batch.mask].double()
    dirty = batch.poisoned(x)
    count = kept.numel()
    mean = kept.mean().item() if count else 0.0
    var = kept.var().item() if count > 1 else 0.0
    assert masked_sum(dirty, batch.mask).item() == pytest.approx(kept.sum().item(), abs=1e-4)
    assert masked_mean(dirty, batch.mask).item() == pytest.approx(mean, abs=1e-5)
    assert masked_var(dirty, batch.mask).item() == pytest.approx(var, rel=1e-5, abs=1e-5)
    white = masked_whiten(dirty, batch.mask)
    expected = torch.where(batch.mask, (x.double() - mean) / math.sqrt(var + 1e-8), 0.0)
    if count != 1:
        torch.testing.assert_close(white.double(), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(white, masked_whiten(x, batch.mask.int()))


def test_variance_precise_with_large_mean() -> None:
    x = torch.tensor([[4096.0, 4096.5, 4097.0]])
    assert masked_var(x, torch.ones(1, 3)).item() == 0.25


def test_half_precision_reduced_in_float32() -> None:
    x = torch.full((1, 1001), 1.0, dtype=torch.bfloat16)
    total = masked_sum(x, torch.ones(1, 1001))
    assert total.dtype == torch.float32
    assert total.item() == 1001.0  # bfloat16 has no 1001


def test_gradients_match_finite_differences() -> None:
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    mask = torch.arange(15).reshape(3, 5) % 3 != 0
    for function in (masked_sum, masked_mean, masked_var, masked_whiten):
        assert torch.autograd.gradcheck(lambda y, function=function: function(y, mask), (x,))
    (grad,) = torch.autograd.grad(masked_var(x, mask), x)
    assert not grad[~mask].any()
    assert grad[mask].all()
