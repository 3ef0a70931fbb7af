"""`team=`: weight sharing and update order of agents."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from ippo_cli.config.constraints import NonNegativeInt, PositiveInt, Range
from ippo_cli.config.marks import Frozen
from ippo_cli.config.schema.registry import option


class TeamKind(str, Enum):
    independent = "independent"
    shared_policy = "shared_policy"
    shared_base = "shared_base"


class UpdateOrder(str, Enum):
    simultaneous = "simultaneous"
    round_robin = "round_robin"
    sequential = "sequential"


class RoleBalance(str, Enum):
    none = "none"
    equal_norm = "equal_norm"
    gradnorm = "gradnorm"


@dataclass
class OpponentPoolConfig:
    """Opponent pool: play against snapshots of earlier policies."""

    every: NonNegativeInt  # iterations between snapshots of all policies, the first before training; 0 = no pool
    size: PositiveInt | None  # maximum number of snapshots; evicts the one with the closest neighbours in time
    share: Annotated[float, Range(0.0, 1.0, open_low=True)] | None  # fraction of prompts played with a snapshot
    elo: bool  # Elo ratings of policies and snapshots of two agents; the higher reward wins a game

    @property
    def max_on_disk(self) -> int:
        """The most snapshots of a policy that exist at the same time, with the one being written; 0 without a pool."""
        return self.size + 1 if self.every and self.size is not None else 0


@dataclass
class TeamConfig:
    """Weight sharing and update order of agents."""

    kind: Frozen[TeamKind]
    # shared in a group: independent: nothing | shared_policy: actor, critic | shared_base: frozen base
    update_order: UpdateOrder  # simultaneous: all | round_robin: one policy at a time | sequential: with a correction
    round_robin_every: PositiveInt | None  # consecutive iterations per policy with round_robin; null otherwise
    opponent_pool: OpponentPoolConfig
    share_rollouts: bool
    # every agent also trains on the scored responses of the others to the same prompts (HACPO)
    role_gradients_every: NonNegativeInt
    # iterations between measurements of each agent's part of the gradient of shared weights; 0 = none


@option("team", "independent")
@dataclass
class IndependentTeamConfig(TeamConfig):
    """Every agent has its own actor and critic."""


@option("team", "shared_policy")
@dataclass
class SharedPolicyConfig(TeamConfig):
    """The agents of a group share one actor and one critic; prompts distinguish the agents."""

    groups: Frozen[dict[str, list[str]]]  # agents of each group by its name; {} = all agents in one, named shared
    role_balance: RoleBalance
    # weights of agents' losses: none: 1 | equal_norm: equal norms of gradients | gradnorm: equal training rates
    gradnorm_alpha: Annotated[float, Range(0.0)] | None  # gradnorm: strength of the balance of rates; null otherwise
    gradnorm_best_score: float | None  # gradnorm: score without a loss, such as 1; null otherwise


@option("team", "shared_base")
@dataclass
class SharedBaseConfig(TeamConfig):
    """The agents of a group share one frozen base in memory; each has its own adapter."""

    groups: Frozen[dict[str, list[str]]]  # agents of each group by its name; {} = all agents in one, named shared
