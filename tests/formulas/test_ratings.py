"""Bradley-Terry strengths."""

from __future__ import annotations

import math

import pytest
import torch

from ippo_cli.formulas import bradley_terry


def test_two_players() -> None:
    found = bradley_terry(torch.tensor([[0.0, 1.0], [9.0, 0.0]]), prior=0.0)
    torch.testing.assert_close(found, torch.tensor([0.0, math.log(9.0)], dtype=torch.float64))
    with_a_draw = bradley_terry(torch.tensor([[0.0, 1.0], [9.0, 0.0]]), prior=1.0)
    assert float(with_a_draw[1]) == pytest.approx(math.log(9.5 / 1.5))


def test_strengths_additive_along_chain() -> None:
    wins = torch.tensor([[0.0, 2.0, 0.0], [4.0, 0.0, 1.0], [0.0, 3.0, 0.0]])
    torch.testing.assert_close(bradley_terry(wins, prior=0.0).exp(), torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64))


def test_fit_matches_expected_wins() -> None:
    generator = torch.Generator().manual_seed(0)
    wins = torch.randint(1, 30, (6, 6), generator=generator).double().fill_diagonal_(0)
    found = bradley_terry(wins, prior=0.0)
    chance = torch.sigmoid(found[:, None] - found[None, :])
    torch.testing.assert_close(((wins + wins.T) * chance).sum(dim=1), wins.sum(dim=1))
    order = torch.tensor([0, 3, 5, 1, 4, 2])
    torch.testing.assert_close(bradley_terry(wins[order][:, order], prior=0.0), found[order])


def test_undefeated_and_unconnected_players() -> None:
    wins = torch.zeros(3, 3)
    wins[1, 0] = 1000.0
    found = bradley_terry(wins)
    assert found[0] == 0.0
    assert 7.0 < float(found[1]) < 8.0
    assert found[2].isnan()


def test_negative_prior_rejected() -> None:
    with pytest.raises(ValueError, match="prior=-1"):
        bradley_terry(torch.zeros(2, 2), prior=-1.0)
