"""`team=`: what agents share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class TeamKind(str, Enum):
    independent = "independent"
    shared_policy = "shared_policy"
    shared_base = "shared_base"


@dataclass
class TeamConfig:
    """What agents share."""

    kind: TeamKind  # independent: nothing | shared_policy: a group's actor and critic | shared_base: its frozen base


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
