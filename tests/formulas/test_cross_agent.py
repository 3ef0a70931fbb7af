"""HACPO's advantages and weights, by hand and against a second implementation."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from ippo_cli.formulas import capability_advantages, cross_agent_weights, group_normalized


def test_advantages_by_hand() -> None:
    found = capability_advantages(
        torch.tensor([0.0, 1.0]), torch.zeros(2, dtype=torch.long), torch.tensor([1.0, 0.5]), scale_by_std=False
    )
    assert found.tolist() == pytest.approx([-0.25, 0.75])


@pytest.mark.parametrize("scale", [True, False])
def test_advantages_of_second_implementation(scale: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    score = torch.rand(40, generator=generator)
    group = torch.randint(5, (40,), generator=generator)
    weight = torch.rand(40, generator=generator) * 2
    found = capability_advantages(score, group, weight, scale_by_std=scale)
    for label in group.unique().tolist():
        rows = [row for row in range(40) if group[row] == label]
        own = [float(score[row]) for row in rows]
        mean = sum(float(weight[row] * score[row]) for row in rows) / len(rows)
        mean = min(max(mean, min(own)), max(own))
        divisor = statistics.stdev(own) + 1e-6 if scale else 1.0
        assert [float(found[row]) for row in rows] == pytest.approx([(one - mean) / divisor for one in own], abs=1e-5)


def test_weights_of_one_are_group_advantages() -> None:
    score, group = torch.rand(12), torch.arange(12) % 3
    assert torch.allclose(
        capability_advantages(score, group, torch.ones(12)), group_normalized(score, group), atol=1e-5
    )


def test_equal_scores_have_no_advantage() -> None:
    score = torch.tensor([0.3, 0.3, 0.3, 0.0, 1.0])
    group = torch.tensor([0, 0, 0, 1, 1])
    found = capability_advantages(score, group, torch.tensor([1.0, 7.0, 7.0, 1.0, 7.0]))
    assert found[:3].tolist() == [0.0, 0.0, 0.0]
    assert found[4] == 0.0, "a baseline of 3.5 counts as the best score"


def test_single_score_is_rejected() -> None:
    with pytest.raises(ValueError, match="one score"):
        capability_advantages(torch.ones(3), torch.tensor([0, 0, 1]), torch.ones(3))


def test_weights_by_hand() -> None:
    mask = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
    author = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, 9.0, 9.0], [-1.0, -1.0, 9.0]])
    change = torch.tensor([[-0.3, 0.0, 0.0], [-1.0, 5.0, 5.0], [0.1, 0.1, 5.0]])
    found = cross_agent_weights(author + change, author, mask, exponent=2.0, clip_range=0.2)
    assert found.tolist() == [pytest.approx([math.exp(-0.2)] * 3, abs=1e-6), [0.0] * 3, [0.0] * 3]
    unlimited = cross_agent_weights(author + change, author, mask, exponent=1.0, clip_range=None)
    assert unlimited[1].tolist() == pytest.approx([math.exp(-1.0), 0.0, 0.0], abs=1e-6)
    assert unlimited[2].tolist() == pytest.approx([math.exp(0.1), math.exp(0.1), 0.0], abs=1e-5)


def test_empty_rows_have_no_weight() -> None:
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    found = cross_agent_weights(torch.ones(2, 3), torch.zeros(2, 3), nothing, exponent=1.0, clip_range=0.5)
    assert found.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize(("exponent", "clip_range"), [(0.0, 0.2), (1.0, 0.0), (1.0, 1.5)])
def test_wrong_numbers_are_rejected(exponent: float, clip_range: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        cross_agent_weights(
            torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1), exponent=exponent, clip_range=clip_range
        )
