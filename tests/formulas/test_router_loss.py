"""The load-balancing loss of mixtures of experts, by hand and against transformers."""

from __future__ import annotations

import pytest
import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from ippo_cli.formulas import router_loss


def test_by_hand() -> None:
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.1, 0.4]])
    # top 1: both tokens choose expert 0: f = 1 0 0, P = 0.6 0.15 0.25, 3 * 0.6
    assert float(router_loss([probabilities.log()], top_k=1)) == pytest.approx(1.8)
    # top 2: f = 1 0.5 0.5: 3 * (0.6 + 0.075 + 0.125)
    assert float(router_loss([probabilities.log()], top_k=2)) == pytest.approx(2.4)
    # as two layers of one token each: the same tokens
    assert float(router_loss(list(probabilities.log().split(1)), top_k=2)) == pytest.approx(2.4)


def test_equal_use_gives_top_k_and_no_tokens_give_zero() -> None:
    assert float(router_loss([4.0 * torch.eye(4)], top_k=1)) == pytest.approx(1.0)
    assert float(router_loss([torch.zeros(0, 4)], top_k=2)) == 0.0


def test_gradient_through_probabilities_alone() -> None:
    logits = torch.tensor([[1.0, 0.0]], requires_grad=True)
    router_loss([logits], top_k=1).backward()  # 2 p_0, so 2 p_0 p_1 for the first logit
    expected = 2 * float(torch.tensor(1.0).sigmoid() * torch.tensor(-1.0).sigmoid())
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.tensor([[expected, -expected]]))


def test_equals_transformers() -> None:
    layers = tuple(torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0)))
    expected = load_balancing_loss_func(layers, 5, 2)
    torch.testing.assert_close(router_loss(layers, top_k=2), expected)
