"""HAPPO's factor: the joint ratio of the previously updated agents at a step."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from ippo_cli.formulas import sequential_factor, step_logratio

MASK = torch.tensor([[True, True, False, True]])
STEP = torch.tensor([[0, 0, -1, 2]])


@pytest.mark.parametrize(("pooling", "expected"), [("sum", [0.3, 0.0, 0.3]), ("mean", [0.15, 0.0, 0.3])])
def test_step_logratio_by_hand(pooling: str, expected: list[float]) -> None:
    new = torch.tensor([[-0.9, -0.8, math.nan, -0.7]])
    found = step_logratio(new, torch.full((1, 4), -1.0), MASK, STEP, steps=3, pooling=pooling)
    torch.testing.assert_close(found, torch.tensor([expected]))


def test_factor_by_hand() -> None:
    logratio = torch.tensor([[math.log(2.0), 0.0, math.log(0.5)]])
    found = sequential_factor(logratio, MASK, STEP, cap=1.5)
    torch.testing.assert_close(found, torch.tensor([[1.5, 1.5, 0.0, 0.5]]))
    untruncated = sequential_factor(logratio, MASK, STEP, cap=math.inf)
    torch.testing.assert_close(untruncated, torch.tensor([[2.0, 2.0, 0.0, 0.5]]))


def test_factor_of_unchanged_policies_is_one() -> None:
    same = torch.randn(1, 4)
    logratio = step_logratio(same, same, MASK, STEP, steps=3, pooling="sum")
    assert torch.equal(sequential_factor(logratio, MASK, STEP, cap=2.0), MASK.float())


def test_factor_of_three_agents_is_product_of_ratios(ragged: Callable) -> None:
    """Each agent's tokens are in other columns; at some steps only two agents act."""
    agents = [ragged(seed) for seed in (1, 2, 3)]
    old, new = [agent.zeroed() for agent in agents], [agent.zeroed() for agent in agents]
    steps = 1 + max(int(agent.turn.max()) for agent in agents)
    logratio = sum(
        step_logratio(new[j], old[j], agents[j].mask, agents[j].turn, steps=steps, pooling="sum") for j in (0, 1)
    )
    assert isinstance(logratio, torch.Tensor)
    found = sequential_factor(logratio, agents[2].mask, agents[2].turn, cap=3.0)
    for row in range(4):
        for column in range(12):
            factor = 1.0 if agents[2].mask[row, column] else 0.0
            for j in (0, 1):
                for other in range(12):
                    acts = agents[j].mask[row, other] and agents[j].turn[row, other] == agents[2].turn[row, column]
                    if acts and agents[2].mask[row, column]:
                        factor *= math.exp(new[j][row, other].item() - old[j][row, other].item())
            assert found[row, column].item() == pytest.approx(min(factor, 3.0), rel=1e-4)


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (lambda x: step_logratio(x, x, MASK, STEP, steps=3, pooling="max"), "pooling=max"),
        (lambda x: step_logratio(x, x, MASK, STEP, steps=2, pooling="sum"), "steps=2"),
        (lambda x: sequential_factor(x[:, :3], MASK, STEP, cap=0.0), "cap=0.0"),
    ],
)
def test_invalid_inputs_rejected(call: Callable, result: str) -> None:
    with pytest.raises(ValueError, match=result):
        call(torch.zeros(1, 4))
