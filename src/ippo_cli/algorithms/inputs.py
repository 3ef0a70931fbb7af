"""Inputs and results of advantage estimators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ippo_cli.types import Experience, Rollout


class Source(NamedTuple):
    """Rows that an agent is trained on, by their author."""

    agent: str
    author: str

    @property
    def is_shared(self) -> bool:
        """Whether another agent has sampled them."""
        return self.agent != self.author

    def select_rollout(self, experience: Experience) -> Rollout:
        """The rows, with the agent's log-probabilities."""
        return experience.shared[self.agent][self.author] if self.is_shared else experience.rollouts[self.agent]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """Inputs of an estimator: one agent's rows of this rank."""

    rewards: Tensor  # [B, R], KL term and bootstrap included
    values: Tensor  # [B, R], as in `Targets`
    mask: Tensor  # [B, R] bool: action tokens
    turn: Tensor  # [B, R] int64
    is_by_turn: bool  # whether actions are turns; otherwise tokens
    group: Tensor  # [B] int64: equal for responses to the same prompt, across ranks
    baseline: Tensor  # [B]: the score of the greedy response; 0 without
    valid: Tensor  # [B] bool: rows that have a score
    capability: float = 1.0  # of the agent, divided by that of the author of the rows


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageOutputs:
    """Result of an estimator; not whitened."""

    advantages: Tensor  # [B, R], 0 off the mask
    returns: Tensor  # [B, R]: regression targets of the values
    usable: Tensor  # [B] bool: rows with a defined advantage
    usable_tokens: Tensor | None = None  # [B, R] bool: tokens with one; None: all of these rows
