"""Mean and deviation of every score so far, which `reward.processor=[running_zscore]` measures scores by."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ippo_cli.engine import distributed


@dataclass(kw_only=True)
class ScoreMoments:
    """Of one agent's scores in all training buffers so far: the same on all ranks, and part of the checkpoint.

    Three buffers `[1, 2]`, `[6]` and `[]` leave `count=3, mean=3, squares=14`, a deviation of `sqrt(14 / 2)`.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared distances from the mean

    @property
    def deviation(self) -> float:
        """With Bessel's correction; 0 of fewer than two scores."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0

    def observe(self, scores: Tensor, valid: Tensor) -> None:
        """Take in the valid rows `[B]` of all ranks (Chan, Golub and LeVeque 1979, eq. 2.1)."""
        count = int(distributed.all_sum(valid.sum().double()))
        if not count:
            return
        mean, variance = (float(moment) for moment in distributed.masked_moments(scores, valid))
        total, gap = self.count + count, mean - self.mean
        self.squares += variance * (count - 1) + gap * gap * self.count * count / total
        self.mean += gap * count / total
        self.count = total

    def standardised(self, scores: Tensor, norm_eps: float) -> Tensor:
        """Distances from the mean in deviations; the scores as they are where the deviation is at most `norm_eps`."""
        if self.deviation <= norm_eps:
            return scores
        return ((scores.double() - self.mean) / self.deviation).to(torch.float32)
