"""Weights of parts of a loss: by hand, against bisection, and against a gradient step by autograd."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ippo_cli.formulas import equal_norm_weights, gradnorm_weights
from ippo_cli.formulas.role_weights import limit_weights


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_equal_norm_weights_by_hand() -> None:
    assert equal_norm_weights(numbers(1, 3), limit=10.0).tolist() == pytest.approx([1.5, 0.5])
    # 300 would have a weight of 0.007: it has the lowest one, and the other the rest of 2
    assert equal_norm_weights(numbers(1, 300), limit=4.0).tolist() == pytest.approx([1.75, 0.25])
    assert equal_norm_weights(numbers(1, 0, 3), limit=10.0).tolist() == pytest.approx([1.5, 1.0, 0.5])
    assert equal_norm_weights(numbers(0, 0), limit=10.0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("limit", [1.0, 1.3, 10.0])
def test_limited_weights_equal_bisection(limit: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for count in (1, 2, 3, 6) * 50:
        weights = (3.0 * torch.randn(count, generator=generator, dtype=torch.float64)).exp()
        low, high = 0.0, 1e9
        for _ in range(200):
            middle = (low + high) / 2
            is_below = (middle * weights).clamp(1 / limit, limit).sum() < count
            low, high = (middle, high) if is_below else (low, middle)
        found = limit_weights(weights, limit=limit)
        assert float(found.sum()) == pytest.approx(count)
        torch.testing.assert_close(found, (high * weights).clamp(1 / limit, limit), rtol=0, atol=1e-6)


def test_limit_below_one_rejected() -> None:
    with pytest.raises(ValueError, match="must be 1 or more"):
        limit_weights(numbers(1, 1), limit=0.5)


@pytest.mark.parametrize("alpha", [0.0, 0.12, 1.5])
def test_gradnorm_step_equals_autograd(alpha: float) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        norms, ratios = (torch.rand(3, generator=generator, dtype=torch.float64) + 0.1 for _ in range(2))
        weights = torch.rand(3, generator=generator, dtype=torch.float64) + 0.5
        weights = (3 * weights / weights.sum()).requires_grad_()
        scaled = weights * norms
        target = (scaled.mean() * (ratios / ratios.mean()) ** alpha).detach()
        (gradient,) = torch.autograd.grad((scaled - target).abs().sum(), weights)
        stepped = (weights - 0.025 / norms.mean() * gradient).detach()
        found = gradnorm_weights(weights.detach(), norms, ratios, alpha=alpha, rate=0.025, limit=100.0)
        torch.testing.assert_close(found, 3 * stepped / stepped.sum())


def test_gradnorm_converges_to_targets() -> None:
    """With alpha 0 to equal norms, and with alpha 1 to norms in proportion to the ratios."""
    norms, ratios = numbers(1.0, 4.0), numbers(1.0, 0.5)
    for alpha, proportion in ((0.0, 1.0), (1.0, 2.0)):
        weights = numbers(1.0, 1.0)
        for _ in range(2000):
            weights = gradnorm_weights(weights, norms, ratios, alpha=alpha, rate=0.002, limit=100.0)
        first, second = (weights * norms).tolist()
        assert first / second == pytest.approx(proportion, rel=0.05)


def test_gradnorm_without_gradients_or_losses_by_hand() -> None:
    weights = numbers(0.5, 1.5)
    assert gradnorm_weights(weights, numbers(0, 0), numbers(1, 1), alpha=1, rate=0.1, limit=10).tolist() == [0.5, 1.5]
    found = gradnorm_weights(numbers(1, 1), numbers(1, 3), numbers(0, 0), alpha=1, rate=0.1, limit=10)
    assert found.tolist() == pytest.approx([1.05 * 2 / 1.9, 0.85 * 2 / 1.9])
    assert math.isclose(float(found.sum()), 2.0)
