"""The soft overlong penalty by hand, against DAPO's equation, and by turn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ippo_cli.formulas import overlong_fraction


def rows(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return mask, torch.where(mask, 0, -1)


def test_overlong_fraction_by_hand() -> None:
    found = overlong_fraction(*rows(1, 6, 7, 8, 10), limit=10, ramp=0.4)
    torch.testing.assert_close(found, torch.tensor([[0.0], [0.0], [0.25], [0.5], [1.0]]))


def test_overlong_fraction_by_turn() -> None:
    """Turns of 2, 4 and 3 tokens with an observation between them, and a limit of 4 tokens."""
    turn = torch.tensor([[0, 0, -1, 1, 1, 1, 1, -1, 2, 2, 2]])
    found = overlong_fraction(turn >= 0, turn, limit=4, ramp=0.5)
    torch.testing.assert_close(found, torch.tensor([[0.0, 1.0, 0.5]]))


@given(length=st.integers(1, 40), cache=st.integers(1, 39))
def test_overlong_fraction_matches_dapo(length: int, cache: int) -> None:
    most = 40
    if length <= most - cache:
        expected = 0.0
    elif length <= most:
        expected = ((most - cache) - length) / cache
    found = overlong_fraction(*rows(length), limit=most, ramp=cache / most)
    assert -found.item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("ramp", [0.0, -0.1, 1.5])
def test_impossible_ramp_rejected(ramp: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        overlong_fraction(*rows(3), limit=4, ramp=ramp)
