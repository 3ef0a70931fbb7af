"""Keys of `algorithm` that have an effect only together with others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

from ippo_cli.config.batch_sizes import policy_steps
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import (
    Advantage,
    ClipLevel,
    Config,
    Credit,
    CriticKind,
    NormalizationScope,
    Objective,
    RatioBase,
    RatioLevel,
    Reweight,
    Truncation,
    TrustRegion,
    ValueUnit,
    WeightLevel,
    has_own_loss,
)


def check_applicability(config: Config) -> Iterator[ConfigError]:
    """Check that every key without effect has its inactive value, and that every required key is set."""
    for key, value, inactive, reason, needed in applicability_rules(config):
        yield from _check_key(key, value, inactive, reason, needed)


def check_read_keys(config: Config, reads: Mapping[str, str]) -> Iterator[ConfigError]:
    """Check that an estimator of a package has values of the keys in `reads`, and that others of `READABLE_KEYS` are
    inactive. `reads`: values that would work.
    """
    for key in READABLE_KEYS:
        unread = None if key in reads else f"advantage={config.algorithm.advantage} does not read it"
        inactive = Credit.token if key == "credit" else None
        needed = reads[key] if key in reads and inactive is None else None
        yield from _check_key(key, getattr(config.algorithm, key), inactive, unread, needed)


def _check_key(key: str, value: Any, inactive: Any, reason: str | None, needed: str | None) -> Iterator[ConfigError]:
    rests = value is inactive or value == inactive
    value_text = "null" if value is None else str(getattr(value, "value", value))
    if reason is not None and not rests:
        rest = "null" if inactive is None else str(getattr(inactive, "value", inactive))
        yield ConfigError(f"algorithm.{key}={value_text}", f"has no effect: {reason}", f"use {rest.lower()}")
    if reason is None and needed is not None and rests:
        yield ConfigError(f"algorithm.{key}={value_text}", "is needed by this algorithm", f"use {needed}")


READABLE_KEYS = ("credit", "scale_by_std", "gamma", "gae_lambda", "length_adaptive_alpha", "critic_gae_lambda")
"""Keys that an estimator of a user or a package may read."""
OBJECTIVE_KEYS = ("trust_region", "clip_range_low", "clip_range_high", "dual_clip", "ratio_cap", "clip_level")
"""Keys that a loss of `objective=path.py:name` may read."""


def _has_values(config: Config) -> bool:
    """Whether the estimator has values of a critic."""
    advantage, critics = config.algorithm.estimator, [agent.critic.kind for agent in config.task.agents.values()]
    return advantage.needs_critic or (advantage.allows_critic and any(kind is not CriticKind.none for kind in critics))


Row = tuple[str, Any, str | None, str | None]
"""A key of `algorithm`, its inactive value, why it has no effect (None: it has one), and a value if it is required."""


def applicability_rules(config: Config) -> Iterator[tuple[str, Any, Any, str | None, str | None]]:
    """Keys of `algorithm` that have an effect only together with others.

    Yields key, value, inactive value, reason why it has no effect (None if it has one), and the suggested value if the
    key is required.
    """
    algorithm = config.algorithm
    is_function, is_own_loss = algorithm.estimator is Advantage.function, has_own_loss(algorithm.objective)
    rows = (*_advantage_rows(config), *_ratio_rows(config), *_update_rows(config), *_term_rows(config))
    for key, inactive, reason, needed in rows:
        if is_function and key in READABLE_KEYS:
            continue  # the function may read them
        if is_own_loss and key in OBJECTIVE_KEYS:
            continue
        yield key, attrgetter(key)(algorithm), inactive, reason, needed


def _missing_values(config: Config) -> str | None:
    """Why keys of values have no effect."""
    return None if _has_values(config) else f"advantage={config.algorithm.advantage} has no values"


def _advantage_rows(config: Config) -> list[Row]:
    """Keys of the advantages, their normalisation, and the values that they are computed from."""
    algorithm, advantage = config.algorithm, config.algorithm.advantage
    scored = None if algorithm.estimator.is_per_action else f"advantage={advantage} gives one advantage per response"
    untrained = None
    if algorithm.estimator is Advantage.none:
        scored = untrained = "advantage=none has no advantages"
    valued = _missing_values(config)
    is_group = algorithm.estimator is Advantage.group
    grouped = None if is_group else f"advantage={advantage} has no standard deviation"
    is_function = algorithm.estimator is Advantage.function
    pooled_by_user = f"advantage={advantage} gets the values of tokens" if is_function else None
    turned = valued or pooled_by_user or (None if algorithm.credit is not Credit.token else "credit=token has no turns")
    fixed = valued or ("length_adaptive_alpha sets lambda" if algorithm.length_adaptive_alpha is not None else None)
    normalized = algorithm.advantage_normalization or is_group
    alone = None if normalized else f"advantage={advantage} without advantage_normalization normalises nothing"
    trained = [name for name, agent in config.task.agents.items() if not agent.frozen]
    alone = alone or (None if len(trained) > 1 else "the run trains one agent")
    unnamed = None if is_function else f"advantage={advantage} calls no function"
    own_loss = None if has_own_loss(algorithm.objective) else "only a loss of path.py:name has keys"
    return [
        ("advantage_args", {}, unnamed, None),
        ("objective_args", {}, own_loss, None),
        ("credit", Credit.token, scored, None),
        ("turn_value", None, turned, "first"),
        ("value_unit", ValueUnit.token, turned, None),
        ("scale_by_std", None, grouped, "true (GRPO) or false"),
        ("gamma", None, scored, "1.0"),
        ("advantage_normalization", False, untrained, None),
        ("normalization_scope", NormalizationScope.agent, alone, None),
        ("kl.reward.coef", 0.0, untrained, None),
        ("gae_lambda", None, fixed, "0.95"),
        ("length_adaptive_alpha", None, valued, None),
        ("critic_gae_lambda", None, valued, None),
    ]


def _ratio_rows(config: Config) -> list[Row]:
    """Keys of the probability ratio and its limits."""
    algorithm, objective, region = config.algorithm, config.algorithm.objective, config.algorithm.trust_region
    clipped = "objective=on_policy has no ratio" if objective == Objective.on_policy else None
    by_token, by_ratio = algorithm.ratio_level is RatioLevel.token, region is TrustRegion.ratio
    pooled = clipped or ("ratio_level=token has no pooling" if by_token else None)
    only_clip = clipped or (None if objective == Objective.clip else f"objective={objective} clips no ratio")
    # A clipped weight needs limits of the ratio, and a probability belongs to one token.
    measured = clipped or ("objective=cispo limits the ratio" if objective == Objective.cispo else None)
    measured = measured or (None if by_token else f"ratio_level={algorithm.ratio_level.value} limits the pooled ratio")
    dual = only_clip or (None if by_ratio else f"trust_region={region.value} has ratio_cap")
    dual = dual or ("clip_level=token limits the ratio" if algorithm.clip_level is ClipLevel.token else None)
    capped = clipped or ("trust_region=ratio limits the ratio" if by_ratio else None)
    level_reason = only_clip or ("ratio_level=token pools no ratios" if by_token else None)
    return [
        ("trust_region", TrustRegion.ratio, measured, None),
        ("ratio_base", RatioBase.policy, clipped, None),
        ("clip_range_low", None, clipped, "0.2"),
        ("clip_range_high", None, clipped, "0.2"),
        ("dual_clip", None, dual, None),
        ("ratio_cap", None, capped, None),
        ("ratio_level", RatioLevel.token, clipped, None),
        ("ratio_pooling", None, pooled, "sum or mean"),
        ("clip_level", ClipLevel.unit, level_reason, None),
    ]


def _update_rows(config: Config) -> list[Row]:
    """Keys of the value loss, and of several optimizer steps per buffer."""
    objective, valued = config.algorithm.objective, _missing_values(config)
    plain = None if objective == Objective.on_policy else f"objective={objective} always allows several steps"
    several_steps = any(policy_steps(config, agent) > 1 for agent in config.task.agents.values())
    single = None if several_steps else "there is one optimizer step per buffer, which is never skipped"
    return [
        ("value_loss_coef", None, valued, "0.5"),
        ("needs_centralized_critic", False, valued, None),
        ("value_clip_range", None, valued, None),
        ("huber_delta", None, valued, None),
        ("critic_warmup", 0, valued, None),
        ("allow_off_policy_steps", False, plain, None),
        ("target_kl", None, single, None),
    ]


def _term_rows(config: Config) -> list[Row]:
    """Keys of truncation, further terms of the loss, and corrections of its weights."""
    algorithm, truncation = config.algorithm, config.algorithm.truncation
    subtracts = truncation in (Truncation.penalty, Truncation.soft_penalty)
    unpenalised = None if subtracts else f"truncation={truncation.value} subtracts nothing"
    unramped = None if truncation is Truncation.soft_penalty else f"truncation={truncation.value} has no ramp"
    unlikely = None if algorithm.positive_nll.coef else "positive_nll.coef=0 has no likelihood term"
    method, level = algorithm.reweight.method, algorithm.behavior_correction.level
    unpowered = None if method is Reweight.pow else f"reweight.method={method.value} has no power"
    unadapted = None if algorithm.kl.reward.target is not None else "without kl.reward.target the coefficient is fixed"
    pooling, exponent = algorithm.sequential_correction.pooling, algorithm.cross_agent.exponent
    unfactored = None if pooling is not None else "sequential_correction.pooling=null has no factors"
    unshared = None if config.team.share_rollouts else "team.share_rollouts=false has no responses of other agents"
    unscaled = unshared or (None if exponent is not None else "cross_agent.exponent=null sets no weights")
    by_group = algorithm.estimator is Advantage.group
    unweighted = None if by_group else f"advantage={algorithm.advantage} does not weigh scores by their authors"
    uncorrected = None if level is not WeightLevel.none else "behavior_correction.level=none has no weights"
    return [
        ("truncation_penalty", None, unpenalised, "a positive number"),
        ("truncation_ramp", None, unramped, "0.2"),
        ("positive_nll.min_score", None, unlikely, "the score of a right response"),
        ("kl.reward.horizon", None, unadapted, "10000"),
        ("reweight.power", None, unpowered, "2.0"),
        ("behavior_correction.cap", None, uncorrected, None),
        ("behavior_correction.band_low", None, uncorrected, None),
        ("behavior_correction.band_high", None, uncorrected, None),
        ("sequential_correction.cap", None, unfactored, None),
        ("cross_agent.exponent", None, unshared, None),
        ("cross_agent.clip_range", None, unscaled, "0.2"),
        ("cross_agent.capability_window", None, unshared or unweighted, None),
    ]
