"""`team=`: what agents share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from ippo_cli.config.constraints import NonNegativeInt, PositiveInt, Range


class TeamKind(str, Enum):
    independent = "independent"
    shared_policy = "shared_policy"
    shared_base = "shared_base"


class UpdateOrder(str, Enum):
    simultaneous = "simultaneous"
    round_robin = "round_robin"
    sequential = "sequential"


@dataclass
class OpponentPoolConfig:
    """Earlier weights as partners, or opponents, of the current ones."""

    every: NonNegativeInt  # iterations between snapshots of all policies, the first before training; 0 = no pool
    size: PositiveInt | None  # snapshots kept; of more, the one goes whose neighbours in time are nearest to each other
    share: Annotated[float, Range(0.0, 1.0, open_low=True)] | None  # of the prompts one agent plays with a snapshot
    elo: bool  # two agents: rate policies and snapshots by their games, won by whoever is paid more


@dataclass
class TeamConfig:
    """What agents share, and who learns when."""

    kind: TeamKind  # independent: nothing | shared_policy: a group's actor and critic | shared_base: its frozen base
    update_order: UpdateOrder  # simultaneous: all | round_robin: one policy at a time | sequential: with a correction
    round_robin_every: PositiveInt | None  # iterations in a row in which one policy learns; null without round_robin
    partners: OpponentPoolConfig


@dataclass
class IndependentTeamConfig(TeamConfig):
    """Every agent has an actor and a critic of its own."""


@dataclass
class SharedPolicyConfig(TeamConfig):
    """The agents of a group have one actor and one critic; the prompt says who is asked."""

    groups: dict[str, list[str]]  # agents of each group by its name; {} = all agents in one, named shared


@dataclass
class SharedBaseConfig(TeamConfig):
    """The agents of a group have one frozen base in memory, and adapters of their own on it."""

    groups: dict[str, list[str]]  # agents of each group by its name; {} = all agents in one, named shared
