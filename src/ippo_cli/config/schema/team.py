"""`team=`: what agents share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class TeamKind(str, Enum):
    independent = "independent"
    shared_policy = "shared_policy"


@dataclass
class TeamConfig:
    """What agents share."""

    kind: TeamKind  # independent: nothing | shared_policy: the agents of a group have one actor and one critic


@dataclass
class IndependentTeamConfig(TeamConfig):
    """Every agent has an actor and a critic of its own."""


@dataclass
class SharedPolicyConfig(TeamConfig):
    """The agents of a group have one actor and one critic; the prompt says who is asked."""

    groups: dict[str, list[str]]  # agents of each group by its name; {} = all agents in one, named shared
