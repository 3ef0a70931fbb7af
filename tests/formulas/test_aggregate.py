"""Loss aggregation in its four modes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ippo_cli.formulas import aggregate

MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
LOSS = torch.tensor([[1.0, 2.0, 9.0, 3.0], [4.0, 9.0, 9.0, 9.0], [9.0, 9.0, 9.0, 9.0]])
MASK = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])  # 4 tokens, 2 rows with tokens


@pytest.mark.parametrize(("mode", "expected"), list(zip(MODES, [10 / 4, 10 / 2, (2 + 4) / 2, 10 / 2 / 8], strict=True)))
def test_modes_by_hand(mode: str, expected: float) -> None:
    assert aggregate(LOSS, MASK, mode=mode, num_tokens=4, num_sequences=2, norm=8).item() == pytest.approx(expected)
    counts = {"num_tokens": torch.tensor(4), "num_sequences": torch.tensor(2)}
    assert aggregate(LOSS, MASK.bool(), mode=mode, norm=8, **counts).item() == pytest.approx(expected)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), mode=st.sampled_from(MODES), cut=st.integers(0, 4), extra=st.integers(0, 4))
def test_micro_batches_sum_to_whole_batch(ragged, seed: int, mode: str, cut: int, extra: int) -> None:
    batch = ragged(seed)
    loss = batch.noise()
    counts = {"num_tokens": int(batch.mask.sum()), "num_sequences": int(batch.mask.any(1).sum())}
    whole = aggregate(loss, batch.mask, mode=mode, norm=12, **counts)
    wide = torch.nn.functional.pad(batch.poisoned(loss), (0, extra), value=torch.nan)
    mask = torch.nn.functional.pad(batch.mask, (0, extra))
    parts = [aggregate(wide[rows], mask[rows], mode=mode, norm=12, **counts) for rows in (slice(cut), slice(cut, None))]
    torch.testing.assert_close(sum(parts), whole, atol=1e-5, rtol=1e-5)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_modes_match_loops(ragged, seed: int) -> None:
    batch = ragged(seed)
    loss = batch.noise()
    rows = [row[own].double() for row, own in zip(loss, batch.mask, strict=True) if own.any()]
    tokens, sequences = sum(row.numel() for row in rows), len(rows)
    expected = {
        "token-mean": sum(row.sum().item() for row in rows) / max(tokens, 1),
        "seq-mean-token-sum": sum(row.sum().item() for row in rows) / max(sequences, 1),
        "seq-mean-token-mean": sum(row.mean().item() for row in rows) / max(sequences, 1),
        "seq-mean-token-sum-norm": sum(row.sum().item() for row in rows) / max(sequences, 1) / 12,
    }
    for mode, number in expected.items():
        actual = aggregate(loss, batch.mask, mode=mode, num_tokens=tokens, num_sequences=sequences, norm=12)
        assert actual.item() == pytest.approx(number, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_empty_mask_gives_differentiable_zero(mode: str) -> None:
    loss = torch.ones(2, 3, requires_grad=True)
    for zero in (0, torch.tensor(0)):
        total = aggregate(loss, torch.zeros(2, 3), mode=mode, num_tokens=zero, num_sequences=zero, norm=8)
        (grad,) = torch.autograd.grad(total, loss)
        assert total.item() == 0.0
        assert not grad.any()


@pytest.mark.parametrize("mode", MODES)
def test_aggregation_matches_finite_differences(mode: str) -> None:
    loss = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: aggregate(x, MASK, mode=mode, num_tokens=4, num_sequences=2, norm=8), (loss,)
    )


@pytest.mark.parametrize("norm", [None, 0.0, -1.0])
def test_norm_mode_requires_positive_norm(norm: float | None) -> None:
    with pytest.raises(ValueError, match="needs a positive constant"):
        aggregate(LOSS, MASK, mode="seq-mean-token-sum-norm", num_tokens=4, num_sequences=2, norm=norm)


def test_unknown_mode_rejected() -> None:
    with pytest.raises(ValueError, match="mode=mean; must be one of token-mean seq-mean-token-sum seq-mean-token-mean"):
        aggregate(LOSS, MASK, mode="mean", num_tokens=4, num_sequences=2)
