"""`algorithm=`: objective, advantages, KL terms and optimizer steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

from ippo_cli.config.constraints import (
    ClipRange,
    Coefficient,
    EntropyCoefficient,
    KlLimit,
    NonNegativeFloat,
    NonNegativeInt,
    OneOf,
    OneOfOrCode,
    PositiveFloat,
    PositiveInt,
    Range,
    UnitFloat,
)
from ippo_cli.config.marks import Changeable
from ippo_cli.config.schema.registry import option


class Objective(str, Enum):
    on_policy = "on_policy"
    clip = "clip"
    mask = "mask"
    cispo = "cispo"


def has_own_loss(objective: str) -> bool:
    """Whether an objective is a user's or a package's, and not one of `Objective`."""
    return objective not in {one.value for one in Objective}


class TrustRegion(str, Enum):
    ratio = "ratio"
    tv = "tv"
    kl = "kl"


class ClipLevel(str, Enum):
    token = "token"
    unit = "unit"


class RatioBase(str, Enum):
    policy = "policy"
    sampler = "sampler"


class Advantage(str, Enum):
    gae = "gae"
    reward_to_go = "reward_to_go"
    group = "group"
    leave_one_out = "leave_one_out"
    greedy_baseline = "greedy_baseline"
    function = "function"
    none = "none"

    @property
    def needs_critic(self) -> bool:
        """Whether the estimator needs values."""
        return self is Advantage.gae

    @property
    def allows_critic(self) -> bool:
        """Whether the estimator may use values; other estimators ignore a critic."""
        return self in (Advantage.gae, Advantage.function)

    @property
    def needs_group(self) -> bool:
        """Whether the baseline is computed from other responses to the same prompt."""
        return self in (Advantage.group, Advantage.leave_one_out)

    @property
    def is_per_action(self) -> bool:
        """Whether the estimator gives one advantage per action; others give one per response."""
        return self in (
            Advantage.gae,
            Advantage.reward_to_go,
            Advantage.function,
        )


class NormalizationScope(str, Enum):
    agent = "agent"
    team = "team"


class Credit(str, Enum):
    token = "token"
    turn = "turn"
    auto = "auto"


class TurnValue(str, Enum):
    first = "first"
    mean = "mean"
    final = "final"
    post = "post"


class ValueUnit(str, Enum):
    token = "token"
    turn = "turn"


class RatioLevel(str, Enum):
    token = "token"
    turn = "turn"
    sequence = "sequence"


class Pooling(str, Enum):
    sum = "sum"
    mean = "mean"


class Reweight(str, Enum):
    none = "none"
    pow = "pow"
    max_min = "max_min"
    max_random = "max_random"


class WeightLevel(str, Enum):
    none = "none"
    token = "token"
    sequence = "sequence"


class Truncation(str, Enum):
    bootstrap = "bootstrap"
    penalty = "penalty"
    soft_penalty = "soft_penalty"
    mask = "mask"
    none = "none"


ObjectiveName = Annotated[str, OneOfOrCode(tuple(one.value for one in Objective), "algorithm.objective")]
ESTIMATORS = {one.value: one for one in Advantage if one is not Advantage.function}
AdvantageName = Annotated[str, OneOfOrCode(tuple(ESTIMATORS), "algorithm.advantage")]
LossAggregation = Annotated[
    str, OneOf(("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"))
]
KlRewardEstimator = Annotated[str, OneOf(("k1", "abs", "k2", "k3", "full"))]
KlLossEstimator = Annotated[str, OneOf(("k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+", "full"))]


@dataclass
class KlRewardConfig:
    """KL penalty inside the per-token reward."""

    coef: Coefficient  # coefficient; 0 switches it off
    estimator: KlRewardEstimator  # k1 | abs | k2 | k3 of the sampled token; full = exact, over the vocabulary
    target: PositiveFloat | None  # adapt the coefficient towards this KL per token; null = fixed
    horizon: Annotated[int, Range(0, open_low=True)] | None  # time scale of the adaptation in samples; null = no target


@dataclass
class KlLossConfig:
    """KL term in the policy loss."""

    coef: Coefficient  # coefficient; 0 switches it off
    estimator: KlLossEstimator  # k1 | abs | k2 | k3, their straight-through forms k1+ | abs+ | k2+ | k3+ | full (exact)


@dataclass
class KlConfig:
    """KL terms between the policy and its reference."""

    reward: KlRewardConfig
    loss: KlLossConfig
    allow_both: bool  # permit a KL term in the reward and in the loss at once


@dataclass
class ReweightConfig:
    """PF-PPO: resample the rows of the buffer with replacement, weighted by their scores."""

    method: Reweight  # none | pow (|score|^power) | max_min (the extremes) | max_random (the best 4 times)
    power: PositiveFloat | None  # exponent of the absolute score with method=pow; null otherwise


@dataclass
class BehaviorCorrectionConfig:
    """Importance weights for a sampler that differs from the policy (sampling filters, another engine)."""

    level: WeightLevel  # none | token | sequence: unit that shares one weight
    cap: PositiveFloat | None  # upper limit at which weights are truncated; null = off
    band_low: NonNegativeFloat | None  # weights below this become 0: their tokens are not trained on; null = no band
    band_high: PositiveFloat | None  # weights above this become 0; set both or neither


@dataclass
class SequentialCorrectionConfig:
    """HAPPO: multiply a policy's advantages by the probability ratio of the policies updated before it."""

    pooling: Pooling | None  # a turn's ratio: sum (product over its tokens) | mean (geometric); null = no correction
    cap: PositiveFloat | None  # upper limit at which factors are truncated; null = off


@dataclass
class CrossAgentConfig:
    """HACPO: how a policy trains on responses that other agents have sampled, with `team.share_rollouts`."""

    exponent: PositiveFloat | None
    # weight: geometric mean of pi / pi_author to this power (HACPO: 1 + alpha); null = behavior_correction
    clip_range: Annotated[float, Range(0.0, 1.0, open_low=True)] | None
    # responses with a mean ratio below 1 - this or above 1 have weight 0; null without an exponent
    capability_window: PositiveInt | None
    # advantage=group: weigh scores by ratios of mean scores over these iterations; null = equally


@dataclass
class PositiveNllConfig:
    """VAPO: the negative log-likelihood of responses with a high score, as a term of the policy loss."""

    coef: Coefficient  # weight of the term; 0 switches it off
    min_score: float | None  # unprocessed score from which a response counts; null without the term


@dataclass
class StepsConfig:
    """Passes over a buffer: the keys of `algorithm` that an agent may override."""

    ppo_epochs: Changeable[PositiveInt]  # passes over the buffer
    mini_batch_size: Changeable[PositiveInt | None]
    # an agent's sequences per step, all ranks; null = rollout.buffer_size


@option("algorithm")
@dataclass
class AlgorithmConfig(StepsConfig):
    """Objective, advantages, KL terms and epochs. null: not used by this algorithm."""

    objective: ObjectiveName
    # on_policy (no ratio) | clip (PPO) | mask (both sides of the range) | cispo (clipped weight) | path.py:name
    objective_args: dict[str, Any]  # values of the keys of objective=path.py:name; see docs/extend.md
    trust_region: TrustRegion  # what the clip ranges limit: ratio | tv (change of the probability) | kl (two-point KL)
    ratio_base: RatioBase  # denominator of the ratio: policy | sampler (the log-probs that it recorded, before filters)
    advantage: AdvantageName
    # gae | reward_to_go | group | leave_one_out | greedy_baseline | none
    # | path.py:name | a method of a package, such as those of the lab
    advantage_args: dict[str, Any]  # values of the keys of advantage=path.py:name or of a package; see docs/extend.md
    credit: Credit  # unit of an action: token | turn | auto (turn if a row of the buffer has several turns)
    turn_value: TurnValue | None  # a turn's value: of its first token | mean | final token | post (after the turn)
    value_unit: ValueUnit  # target of the value loss: token (one value per token) | turn (one value per turn)
    scale_by_std: bool | None  # advantage=group: divide by the group's standard deviation (GRPO) or not (Dr. GRPO)
    gamma: UnitFloat | None  # discount per action
    gae_lambda: UnitFloat | None  # GAE's lambda
    length_adaptive_alpha: PositiveFloat | None  # lambda over l actions is max(0, 1 - 1 / (alpha l)); null = gae_lambda
    critic_gae_lambda: UnitFloat | None  # lambda of the critic's returns; null = lambda of the advantages
    advantage_normalization: bool  # whiten advantages over the actions of the whole buffer
    normalization_scope: NormalizationScope  # rows of one mean and deviation: agent (one agent's) | team (all agents')
    clip_range_low: Annotated[float, Range(0.0, 1.0, open_low=True)] | None  # limit of a decrease: a ratio of 1 - this
    clip_range_high: ClipRange | None  # limit of an increase: a ratio of 1 + this, or the change in trust_region's unit
    dual_clip: Annotated[float, Range(1.0, open_low=True)] | None  # bounds the loss of negative advantages; null = off
    ratio_cap: Annotated[float, Range(1.0, open_low=True)] | None  # trust_region=tv or kl: larger ratios count as this
    ratio_level: RatioLevel  # unit of one probability ratio: token | turn | sequence
    ratio_pooling: Pooling | None  # log-ratios of a turn or sequence: sum (the product) | mean (GSPO); null for tokens
    clip_level: ClipLevel  # what is clipped: the ratio of the unit | that of each token, before pooling (GMPO)
    value_clip_range: PositiveFloat | None  # clip range of the value update; null = off
    huber_delta: PositiveFloat | None  # Huber loss: linear beyond this value error; null = squared error
    value_loss_coef: Coefficient | None  # weight of the value loss
    needs_centralized_critic: bool  # require critic=centralized (MAPPO); false = any critic
    entropy_coef: EntropyCoefficient  # weight of the entropy bonus
    router_loss_coef: Coefficient  # weight of the router loss of mixtures of experts; 0 = without it
    loss_aggregation: LossAggregation  # token-mean | seq-mean-token-sum | seq-mean-token-mean | seq-mean-token-sum-norm
    allow_off_policy_steps: bool  # allow several optimizer steps per iteration with objective=on_policy
    target_kl: KlLimit | None  # skip the rest of an iteration's policy steps above this KL estimate; null = never
    critic_warmup: NonNegativeInt  # first iterations in which only the critic is trained
    truncation: Truncation  # cut responses: none (scored as is) | penalty | soft_penalty | mask | bootstrap (adds V)
    truncation_penalty: PositiveFloat | None  # subtracted from the score of a truncated response
    truncation_ramp: Annotated[float, Range(0.0, 1.0, open_low=True)] | None
    # soft_penalty: last part of the token limit in which the penalty grows to its full size
    reweight: ReweightConfig
    positive_nll: PositiveNllConfig
    behavior_correction: BehaviorCorrectionConfig
    sequential_correction: SequentialCorrectionConfig
    cross_agent: CrossAgentConfig
    kl: KlConfig

    @property
    def estimator(self) -> Advantage:
        """The estimator of `advantage`; `function` for code of a user or a package."""
        return ESTIMATORS.get(self.advantage, Advantage.function)
