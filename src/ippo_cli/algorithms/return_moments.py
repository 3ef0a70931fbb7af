"""Running moments of a critic's returns, which normalise its values and targets (PopArt)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ippo_cli.engine import distributed

MIN_STD = 1e-4  # as in the paper; also relative to the mean, since float32 values have 7 digits


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnMoments:
    """Debiased exponential averages of the mean and of the mean square of each buffer; equal on all ranks.

    Two buffers with means 1 and 4 at `beta=0.5` give `(0.5 * 1 + 4) / (0.5 + 1) = 3`; at `beta=1`, 2.5.
    """

    weight: float = 0.0  # of the buffers so far: a buffer has 1, and beta of that after each later one
    mean_sum: float = 0.0
    square_sum: float = 0.0
    mean: float = 0.0  # those by which the critic is normalised; before the first buffer, of the first scores
    std: float = 1.0

    def update(self, returns: Tensor, mask: Tensor, beta: float) -> Self:
        """Add the masked returns of all ranks. Collective."""
        sums = _sum_powers(returns, mask)
        if sums is None:
            return self
        mean, square = sums
        weight = beta * self.weight + 1.0
        mean_sum, square_sum = beta * self.mean_sum + mean, beta * self.square_sum + square
        mean, std = _mean_std(mean_sum / weight, square_sum / weight)
        return replace(self, weight=weight, mean_sum=mean_sum, square_sum=square_sum, mean=mean, std=std)

    def start_from(self, scores: Tensor, mask: Tensor) -> Self:
        """The moments of the masked scores of all ranks; they have no weight in later averages. Collective."""
        sums = _sum_powers(scores, mask)
        if sums is None:
            return self
        mean, std = _mean_std(*sums)
        return replace(self, mean=mean, std=std)


def _sum_powers(numbers: Tensor, mask: Tensor) -> tuple[float, float] | None:
    """Mean and mean square of the masked numbers of all ranks; None without any. Collective."""
    chosen = numbers[mask].double()
    sums = torch.stack([chosen.sum(), chosen.square().sum(), mask.sum().double()])
    total, squares, count = distributed.all_sum(sums).tolist()
    return (total / count, squares / count) if count else None


def _mean_std(mean: float, square: float) -> tuple[float, float]:
    std = math.sqrt(max(square - mean * mean, 0.0))
    return mean, max(std, MIN_STD, MIN_STD * abs(mean))
