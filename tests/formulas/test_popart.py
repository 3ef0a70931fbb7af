"""Rescaling of an output layer, by hand and against the outputs."""

from __future__ import annotations

import pytest
import torch

from ippo_cli.formulas import rescale_output


def test_rescale_output_by_hand() -> None:
    weight, bias = rescale_output(torch.tensor([[2.0]]), torch.tensor([1.0]), (0.0, 1.0), (5.0, 4.0))
    assert (weight.item(), bias.item()) == (0.5, -1.0)


@pytest.mark.parametrize("moments", [((0.0, 1.0), (500.0, 100.0)), ((-3.0, 0.2), (8.0, 30.0))])
def test_rescaled_values_remain(moments: tuple[tuple[float, float], tuple[float, float]]) -> None:
    torch.manual_seed(0)
    (mean, std), (new_mean, new_std) = moments
    layer, hidden = torch.nn.Linear(16, 1), torch.randn(50, 16)
    weight, bias = rescale_output(layer.weight, layer.bias, *moments)
    before = std * layer(hidden) + mean
    torch.testing.assert_close(new_std * (hidden @ weight.T + bias) + new_mean, before, rtol=1e-5, atol=1e-4)


def test_std_of_zero_rejected() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        rescale_output(torch.ones(1, 1), torch.ones(1), (0.0, 1.0), (5.0, 0.0))
