"""Random ragged responses with holes, and slow reference loops in double precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor


@dataclass
class Ragged:
    """Masks of responses of unequal length, some empty, most with holes between their turns."""

    mask: Tensor  # [B, R] bool
    turn: Tensor  # [B, R] int64, -1 off the mask; some numbers are skipped
    generator: torch.Generator

    def noise(self) -> Tensor:
        """Normal `[B, R]` float32, on and off the mask."""
        return torch.randn(self.mask.shape, generator=self.generator)

    def zeroed(self) -> Tensor:
        """Normal `[B, R]` float32, 0 off the mask."""
        return torch.where(self.mask, self.noise(), 0.0)

    def poisoned(self, x: Tensor) -> Tensor:
        """`x` with NaN off the mask."""
        return torch.where(self.mask, x, torch.nan)


@pytest.fixture(scope="session")
def ragged() -> Callable[..., Ragged]:
    """A factory of random ragged batches from a seed."""

    def make(seed: int, *, rows: int = 4, width: int = 12) -> Ragged:
        generator = torch.Generator().manual_seed(seed)
        mask = torch.rand(rows, width, generator=generator) < 0.7
        lengths = torch.randint(0, width + 1, (rows, 1), generator=generator)
        mask &= torch.arange(width) < lengths
        starts = mask & ~torch.cat([torch.zeros(rows, 1, dtype=torch.bool), mask[:, :-1]], dim=1)
        steps = torch.randint(1, 3, (rows, width), generator=generator) * starts
        turn = torch.where(mask, steps.cumsum(1) - 1, -1)
        return Ragged(mask=mask, turn=turn, generator=generator)

    return make


@pytest.fixture(scope="session")
def loop_gae() -> Callable[..., tuple[Tensor, Tensor]]:
    """GAE one token at a time, in Python floats."""

    def loop(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
        advantages = torch.zeros(mask.shape, dtype=torch.float64)
        returns = torch.zeros(mask.shape, dtype=torch.float64)
        for row in range(mask.shape[0]):
            advantage = next_value = 0.0
            for t in reversed(range(mask.shape[1])):
                if mask[row, t]:
                    value = values[row, t].item()
                    delta = rewards[row, t].item() + gamma * next_value - value
                    advantage = delta + gamma * lam * advantage
                    advantages[row, t], returns[row, t] = advantage, advantage + value
                    next_value = value
        return advantages, returns

    return loop
