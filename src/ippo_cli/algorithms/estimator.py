"""What an advantage estimator, or another part of targets, may do at each step of their computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs, Source
from ippo_cli.config.schema import AlgorithmConfig
from ippo_cli.types import Experience, Rollout, Targets

State = Mapping[str, Any] | None
"""Values of JSON, equal on all ranks; None before the first buffer, and for a part without a state."""
PenalizeTruncation = Callable[[Tensor, Rollout], Tensor]
"""Scores by turn `[B, K]` of a rollout, less the penalties of truncated responses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowContext:
    """What an agent's rows belong to."""

    source: Source
    experience: Experience
    state: State  # of the part that asks
    penalize: PenalizeTruncation


class CriticLimits(Protocol):
    """Parts of the tokens that an agent's critics leave out, by their disagreement; None: all are trained on."""

    mask_agreement: float | None
    mask_entropy: float | None


class TargetPart:
    """A part of the computation of targets. Every default does nothing.

    All calls are collective. The state is a value: targets return the next one, which counts once the iteration is
    complete, and checkpoints store it under `name`.
    """

    name: ClassVar[str]

    def __init__(self, config: AlgorithmConfig) -> None:
        self.config = config

    def prepare(self, inputs: AdvantageInputs, rows: RowContext) -> AdvantageInputs:
        """The inputs of the estimator for an agent's rows, with what this part adds."""
        return inputs

    def transform(
        self, advantages: Mapping[Source, Tensor], masks: Mapping[Source, Tensor], actions: Mapping[Source, Tensor]
    ) -> Mapping[Source, Tensor]:
        """The advantages of all rows, changed together. `masks`, `actions`: the trained tokens, and one by action."""
        return advantages

    def weigh(self, advantages: Tensor, inputs: AdvantageInputs, source: Source) -> Tensor:
        """The transformed advantages of an agent's rows, weighted."""
        return advantages

    def complete(self, targets: Targets, agent: CriticLimits) -> Targets:
        """The targets of an agent's rows, with what depends on all of them."""
        return targets

    def metrics(self, state: State) -> dict[str, float]:
        """Metrics of an iteration from the state after it, by full name."""
        return {}

    def next_state(self, experience: Experience, state: State) -> State:
        """The state after a buffer."""
        return state


class Estimator(TargetPart):
    """`algorithm.advantage`: by default there are none, and other terms of the loss train the policy."""

    name: ClassVar[str] = "none"

    def estimate(
        self, inputs: Mapping[Source, AdvantageInputs], experience: Experience, state: State
    ) -> tuple[dict[Source, AdvantageOutputs], State]:
        """The advantages of each set of rows, and the state after the buffer."""
        return {source: self.estimate_rows(own) for source, own in inputs.items()}, state

    def estimate_rows(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        """The advantages of one set of rows, from these rows alone."""
        zeros = torch.zeros_like(inputs.rewards)
        return AdvantageOutputs(advantages=zeros, returns=zeros, usable=inputs.valid)
