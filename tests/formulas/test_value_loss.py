"""The critic's loss, by hand, against plain arithmetic, and by finite differences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ippo_cli.formulas import aggregate, value_loss


def close(actual: Tensor, expected: list) -> None:
    """Assert equality within 1e-5."""
    torch.testing.assert_close(actual, torch.tensor(expected), atol=1e-5, rtol=1e-5)


NEW = torch.tensor([[1.0, 0.1, -1.0, 0.0]])
OLD = torch.zeros(1, 4)
RETURNS = torch.tensor([[2.0, 2.0, 2.0, 0.0]])


def test_value_loss_by_hand() -> None:
    close(value_loss(NEW, OLD, RETURNS), [[0.5, 1.805, 4.5, 0.0]])


def test_clipped_value_loss_by_hand() -> None:
    # V_clip = .2 .1 -.2 0: errors 1.8 1.9 2.2 0 against 1 1.9 3 0
    close(value_loss(NEW, OLD, RETURNS, value_clip_range=0.2), [[1.62, 1.805, 4.5, 0.0]])


def test_huber_loss_by_hand() -> None:
    # |e| = 1 1.9 3 0 at delta 1.5: .5, 1.5 * (1.9 - .75), 1.5 * (3 - .75), 0
    close(value_loss(NEW, OLD, RETURNS, huber_delta=1.5), [[0.5, 1.725, 3.375, 0.0]])
    close(value_loss(NEW, OLD, RETURNS, value_clip_range=0.2, huber_delta=1.5), [[1.575, 1.725, 3.375, 0.0]])


def test_clipped_value_has_no_gradient() -> None:
    new = NEW.clone().requires_grad_()
    value_loss(new, OLD, RETURNS, value_clip_range=0.2).sum().backward()
    close(new.grad, [[0.0, -1.9, -3.0, 0.0]])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), clip=st.sampled_from([None, 0.2, 1.0]), delta=st.sampled_from([None, 0.5, 10.0]))
def test_value_loss_matches_arithmetic(ragged, seed: int, clip: float | None, delta: float | None) -> None:
    batch = ragged(seed)
    new, old, returns = batch.zeroed(), batch.zeroed(), batch.zeroed()
    actual = value_loss(new, old, returns, value_clip_range=clip, huber_delta=delta)

    def cost(e: float) -> float:
        return 0.5 * e * e if delta is None or abs(e) < delta else delta * (abs(e) - 0.5 * delta)

    for n, o, r, got in zip(*(x.flatten().tolist() for x in (new, old, returns, actual)), strict=True):
        expected = cost(n - r)
        if clip is not None:
            expected = max(expected, cost(o + min(max(n - o, -clip), clip) - r))
        assert got == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert not actual[~batch.mask].any()


@pytest.mark.parametrize("clip", [None, 0.4])
@pytest.mark.parametrize("delta", [None, 0.7])
def test_value_loss_matches_finite_differences(clip: float | None, delta: float | None) -> None:
    new, old, returns = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    new.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda v: value_loss(v, old, returns, value_clip_range=clip, huber_delta=delta), (new,)
    )


def test_nan_padding_ignored(ragged) -> None:
    batch = ragged(8)
    new, old, returns = batch.zeroed(), batch.zeroed(), batch.zeroed()
    counts = {"mode": "token-mean", "num_tokens": 4, "num_sequences": 3}
    clean = value_loss(new, old, returns, value_clip_range=0.2, huber_delta=1.0)
    dirty = value_loss(*map(batch.poisoned, (new, old, returns)), value_clip_range=0.2, huber_delta=1.0)
    assert torch.equal(aggregate(clean, batch.mask, **counts), aggregate(dirty, batch.mask, **counts))


@pytest.mark.parametrize("name", ["value_clip_range", "huber_delta"])
def test_nonpositive_settings_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0.0; must be positive"):
        value_loss(NEW, OLD, RETURNS, **{name: 0.0})
