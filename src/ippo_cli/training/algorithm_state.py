"""The numbers of an algorithm that follow from earlier buffers, and are part of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmState:
    """Equal on all ranks."""

    kl_coef: Mapping[str, float] = field(default_factory=dict)  # adapted coefficients of the reward's KL term, by agent
    role_baselines: Mapping[str, float] = field(default_factory=dict)  # by agent, or by `agent/role`
    recent_scores: Mapping[str, Sequence[float]] = field(default_factory=dict)  # means of iterations, by agent

    @classmethod
    def from_saved(cls, stored: Mapping[str, Any]) -> Self:
        """The state from `state.json`; earlier versions store coefficients only."""
        return cls(
            kl_coef=stored["kl_coef"],
            role_baselines=stored.get("role_baselines", {}),
            recent_scores=stored.get("recent_scores", {}),
        )

    def to_saved(self) -> dict[str, Any]:
        """The state as values of JSON."""
        return asdict(self)
