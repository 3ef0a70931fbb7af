"""Coverage of intervals over few rows, and errors of comparisons of a chosen checkpoint, by simulation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ippo_cli.evaluation.estimates import paired_comparison, t_interval
from ippo_cli.formulas.estimates import share_interval

Draw = Callable[[torch.Generator, int], Tensor]
RUNS = 1000


def coverage(interval: Callable[[Tensor], tuple[float, float]], draw: Draw, rows: int, mean: float) -> float:
    """The fraction of simulated samples with an interval that contains the mean."""
    generator = torch.Generator().manual_seed(0)
    ends = [interval(draw(generator, rows)) for _ in range(RUNS)]
    return sum(low <= mean <= high for low, high in ends) / RUNS


def shares(generator: torch.Generator, rows: int) -> Tensor:
    """Means of four responses that are right with probability .3."""
    return (torch.rand(rows, 4, generator=generator) < 0.3).double().mean(dim=1)


def pairs(generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
    """Scores of two models of which one is right in a tenth of the rows, and the other in none."""
    return (torch.rand(rows, generator=generator) < 0.1).double(), torch.zeros(rows)


@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda generator, rows: torch.randn(rows, generator=generator), 0.0),
        (lambda generator, rows: torch.rand(rows, generator=generator), 0.5),
        (shares, 0.3),
    ],
    ids=["normal", "uniform", "shares"],
)
def test_t_intervals_over_few_rows_cover(draw: Draw, mean: float, rows: int) -> None:
    assert coverage(t_interval, draw, rows, mean) >= 0.93


@pytest.mark.parametrize("rows", [8, 16])
def test_intervals_of_binary_scores_cover(rows: int) -> None:
    def interval(generator_rows: Tensor) -> tuple[float, float]:
        found = paired_comparison(generator_rows, torch.zeros(rows), seed=0)
        return found["low"], found["high"]

    assert coverage(lambda values: share_interval(values, 4 * rows), shares, rows, 0.3) >= 0.93
    assert coverage(interval, lambda generator, rows: pairs(generator, rows)[0], rows, 0.1) >= 0.93


def test_best_of_many_evaluations_is_seldom_better_by_chance() -> None:
    """Twenty equal checkpoints of which the best is compared with the initial weights on the rows that chose it."""
    generator, wrong, uncorrected, runs, rows = torch.Generator().manual_seed(1), 0, 0, 200, 48
    for _ in range(runs):
        difficulty = torch.rand(rows, generator=generator)
        scores = (torch.rand(21, rows, generator=generator) < difficulty).double()
        best = scores[int(scores.mean(dim=1).argmax())]
        wrong += paired_comparison(best, scores[0], seed=0, comparisons=21)["p"] < 0.05
        uncorrected += paired_comparison(best, scores[0], seed=0)["p"] < 0.05
    assert uncorrected > 0.1 * runs
    assert wrong <= 0.06 * runs
