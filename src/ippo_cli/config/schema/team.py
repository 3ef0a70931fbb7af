"""`team=`: what agents share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ippo_cli.config.constraints import PositiveInt


class TeamKind(str, Enum):
    independent = "independent"
    shared_policy = "shared_policy"


class UpdateOrder(str, Enum):
    simultaneous = "simultaneous"
    round_robin = "round_robin"
    sequential = "sequential"


@dataclass
class TeamConfig:
    """What agents share, and who learns when."""

    kind: TeamKind  # independent: nothing | shared_policy: the agents of a group have one actor and one critic
    update_order: UpdateOrder  # simultaneous: all | round_robin: one policy at a time | sequential: with a correction
    round_robin_every: PositiveInt | None  # iterations in a row in which one policy learns; null without round_robin


@dataclass
class IndependentTeamConfig(TeamConfig):
    """Every agent has an actor and a critic of its own."""


@dataclass
class SharedPolicyConfig(TeamConfig):
    """The agents of a group have one actor and one critic; the prompt says who is asked."""

    groups: dict[str, list[str]]  # agents of each group by its name; {} = all agents in one, named shared
