"""The models of one agent, of which plans compute memory."""

from __future__ import annotations

from dataclasses import dataclass

from ippo_cli.config.schema import Dtype
from ippo_cli.models.shape import ModelShape
from ippo_cli.planning.episode_length import EpisodeLength


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentShapes:
    """The models of one agent, and the lengths of their inputs."""

    actor: ModelShape
    critic: ModelShape | None  # separate critic; None for a value head on the actor, or no critic
    length: EpisodeLength
    weights_source: str  # source of the actor's initial weights: agents with the same source share one reference
    reference: ModelShape | None = None  # additional frozen weights of its reference; None if shared
    critic_row_tokens: int | None = None  # longest row of a centralised critic; None: the critic reads the agent's rows


def bytes_per_weight(dtype: Dtype) -> int:
    """Bytes per weight."""
    return 4 if dtype is Dtype.fp32 else 2
