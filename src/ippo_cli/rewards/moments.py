"""Running mean and standard deviation of scores, used by `reward.processor=[running_zscore]`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from ippo_cli.engine import distributed


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreMoments:
    """Moments of one agent's scores in all training buffers so far; equal on all ranks and saved in checkpoints.

    Three buffers `[1, 2]`, `[6]` and `[]` give `count=3, mean=3, squares=14`, a deviation of `sqrt(14 / 2)`.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared distances from the mean

    @property
    def std(self) -> float:
        """The standard deviation with Bessel's correction; 0 for fewer than two scores."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0

    def update(self, scores: Tensor, valid: Tensor) -> Self:
        """Add the valid rows `[B]` of all ranks (Chan, Golub and LeVeque 1979, eq. 2.1). Collective."""
        count = int(distributed.all_sum(valid.sum().double()))
        if not count:
            return self
        mean, variance = (float(moment) for moment in distributed.masked_moments(scores, valid))
        total, gap = self.count + count, mean - self.mean
        return type(self)(
            count=total,
            mean=self.mean + gap * count / total,
            squares=self.squares + (variance * (count - 1) + gap * gap * self.count * count / total),
        )
