"""`reward=`: how responses become scores."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ippo_cli.config.constraints import Name, NonNegativeFloat, NonNegativeInt, UnitFloat


class RewardKind(str, Enum):
    environment = "environment"
    exact_match = "exact_match"
    function = "function"
    grid = "grid"
    gsm8k = "gsm8k"
    number = "number"


class CreditAssignment(str, Enum):
    none = "none"
    difference = "difference"
    counterfactual = "counterfactual"
    leave_out = "leave_out"


class Processor(str, Enum):
    scale = "scale"
    shift = "shift"
    clip = "clip"
    zscore = "zscore"
    running_zscore = "running_zscore"


class Match(str, Enum):
    characters = "characters"
    exact = "exact"


class NumberMatch(str, Enum):
    strict = "strict"
    flexible = "flexible"


@dataclass
class RewardWeightsConfig:
    """What counts in an agent's score: the keys of `reward` that an agent may have values of its own for."""

    team_weight: float  # weight of the joint reward in each agent's score
    agent_weight: float  # weight of the agent's own reward
    turn_weight: float  # weight, in both, of numbers for single turns beside those for whole episodes


@dataclass
class RewardConfig(RewardWeightsConfig):
    """How responses become scores."""

    kind: RewardKind  # exact_match | function | grid | gsm8k | number | environment
    credit_assignment: CreditAssignment  # none | difference (to its initial policy) | counterfactual | leave_out
    measure_credit_every: NonNegativeInt  # iterations between difference rewards that are only logged; 0 = never
    processor: list[Processor]  # steps applied in order to the mixed score: scale, shift, clip, zscore, running_zscore
    scale: float  # processor `scale` multiplies by this
    shift: float  # processor `shift` adds this
    clip_low: float  # processor `clip` bounds
    clip_high: float  # processor `clip` bounds
    norm_eps: NonNegativeFloat  # `zscore` (of the buffer), `running_zscore` (of all so far) leave smaller deviations
    failure_budget: UnitFloat  # share of a buffer's rows that may fail before the run stops
    reward_batch_rows: NonNegativeInt  # reward this many finished rows while others are written; 0 = all rows at once


@dataclass
class ExactMatchConfig(RewardConfig):
    """Compares each response with its agent's reference answer."""

    match: Match  # characters (share of correct positions) | exact (all or nothing)


@dataclass
class FunctionRewardConfig(RewardConfig):
    """A function of the user's."""

    function: Name | None  # path.py:function or module:function
    whole_batch: bool  # its numbers compare rows: a rank's rows are never asked about in parts, not even after failures


@dataclass
class GridRewardConfig(RewardConfig):
    """How near to its goal a walk ended, less what its detours cost."""

    step_cost: UnitFloat  # subtracted for every step that did not bring the walk nearer


@dataclass
class Gsm8kRewardConfig(RewardConfig):
    """Whether a response's number is that of the reference answer."""

    match: NumberMatch  # strict (the number after the last ####) | flexible (the last number); both are reported


@dataclass
class NumberRewardConfig(RewardConfig):
    """How near a response's last number is to the reference answer's, in which form; the weights are of these."""

    right: NonNegativeFloat  # of the right number
    near: NonNegativeFloat  # of nearness: 1 less the relative error, at least 0
    bare: NonNegativeFloat  # of a number and nothing else, right or wrong


@dataclass
class EnvironmentRewardConfig(RewardConfig):
    """What a world pays as it goes."""
