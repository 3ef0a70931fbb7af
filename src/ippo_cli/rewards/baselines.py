"""Baselines of scores: what is subtracted from an agent's scores to give its credit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ippo_cli.config.schema import CreditAssignment
from ippo_cli.formulas import score_to_go, telescope_credit, turn_credit


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Counterfactual scores of an agent, which are subtracted from its scores to give its credit."""

    numbers: Tensor  # [B, K] as the agent's scores; 0 in unknown rows
    known: Tensor  # [B] bool
    failure: Exception | None  # the first failure among unknown rows

    @property
    def turn_mask(self) -> Tensor:
        """The turns with a credit, `[B, K]` bool."""
        return torch.ones_like(self.numbers, dtype=torch.bool)

    def subtract_from(self, numbers: Tensor) -> Tensor:
        """The credit of the agent's scores `[B, K]`."""
        return numbers - self.numbers

    def scores_of_credit(self, credit: Tensor) -> Tensor:
        """The scores that algorithms learn from, given the processed credit `[B, K]`."""
        return credit


@dataclass(frozen=True, kw_only=True)
class TurnBaseline(Baseline):
    """Mean returns from each turn of the agent over alternatives to this turn: `numbers` in float64.

    The credit of a turn is the return from this turn minus the baseline, so algorithms, which sum later scores, get the
    differences of consecutive credits as scores.
    """

    measured: Tensor  # [B, K] bool
    gamma: float  # discount per turn

    @property
    def turn_mask(self) -> Tensor:
        return self.measured

    def subtract_from(self, numbers: Tensor) -> Tensor:
        returns = score_to_go(numbers.double(), gamma=self.gamma)
        return turn_credit(returns, self.numbers, self.measured).float()

    def scores_of_credit(self, credit: Tensor) -> Tensor:
        return telescope_credit(credit, gamma=self.gamma)


CreditBaselines = dict[CreditAssignment, dict[str, Baseline]]
"""By kind of credit, then by agent."""
