"""The running mean of returns before each return."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ippo_cli.formulas import role_baseline


def test_by_hand() -> None:
    baselines, after = role_baseline(torch.tensor([1.0, 3.0]), start=0.0, decay=0.5)
    assert baselines.tolist() == [0.0, 0.5]
    assert after == 1.75
    baselines, after = role_baseline(torch.tensor([2.0, -1.0, 0.0]), start=10.0, decay=0.9)
    assert baselines.tolist() == pytest.approx([10.0, 9.2, 8.18])
    assert after == pytest.approx(7.362)
    assert role_baseline(torch.zeros(0), start=3.0, decay=0.9)[1] == 3.0


@given(st.lists(st.floats(-5, 5, width=32), max_size=30), st.floats(0.0, 0.99), st.integers(0, 30))
def test_equals_weighted_sum_and_continues(returns: list[float], decay: float, cut: int) -> None:
    whole, after = role_baseline(torch.tensor(returns), start=0.5, decay=decay)
    for row in range(len(returns)):  # second implementation: the geometric weights written out
        terms = [(1 - decay) * decay ** (row - 1 - place) * number for place, number in enumerate(returns[:row])]
        assert float(whole[row]) == pytest.approx(0.5 * decay**row + sum(terms), abs=1e-4)
    first, between = role_baseline(torch.tensor(returns[:cut]), start=0.5, decay=decay)
    second, last = role_baseline(torch.tensor(returns[cut:]), start=between, decay=decay)
    assert torch.equal(torch.cat([first, second]), whole)
    assert last == after
