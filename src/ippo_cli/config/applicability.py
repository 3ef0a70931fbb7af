"""Rules of `algorithm`: valid combinations of its keys with critics, buffers and rewards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

from ippo_cli.config.batch_sizes import format_divisors, policy_steps
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.references import is_default_reference
from ippo_cli.config.schema import (
    Advantage,
    CentralizedCriticConfig,
    ClipLevel,
    Config,
    ConversationConfig,
    Credit,
    CriticKind,
    NormalizationScope,
    Objective,
    OptimizedCriticConfig,
    Processor,
    RatioBase,
    RatioLevel,
    Reweight,
    Truncation,
    TrustRegion,
    TurnValue,
    ValueUnit,
    WeightLevel,
    has_own_loss,
)
from ippo_cli.config.served_agents import local_agents


def _check_steps(config: Config) -> Iterator[ConfigError]:
    algorithm, size = config.algorithm, config.rollout.buffer_size
    minis = {"algorithm.mini_batch_size": algorithm.mini_batch_size}
    shared_critic = getattr(config.critic, "mini_batch_size", None)
    for name, agent in config.task.agents.items():
        if agent.algorithm.mini_batch_size != algorithm.mini_batch_size:
            minis[f"task.agents.{name}.algorithm.mini_batch_size"] = agent.algorithm.mini_batch_size
        if isinstance(agent.critic, OptimizedCriticConfig):
            where = "" if agent.critic.mini_batch_size == shared_critic else f"task.agents.{name}."
            minis[f"{where}critic.mini_batch_size"] = agent.critic.mini_batch_size
    for key, mini in minis.items():
        if mini is not None and size % mini:
            yield ConfigError(
                f"{key}={mini}", f"does not divide rollout.buffer_size={size}", "use one of " + format_divisors(size)
            )
    for name, agent in config.task.agents.items():
        steps, own = policy_steps(config, agent), agent.algorithm
        if algorithm.objective == Objective.on_policy and steps > 1 and not algorithm.allow_off_policy_steps:
            shared = (own.mini_batch_size, own.ppo_epochs) == (algorithm.mini_batch_size, algorithm.ppo_epochs)
            where = "" if shared else f"task.agents.{name}."
            yield ConfigError(
                f"{where}algorithm.mini_batch_size={own.mini_batch_size or 'null'} "
                f"{where}algorithm.ppo_epochs={own.ppo_epochs}",
                f"make {steps} optimizer steps per buffer, but objective=on_policy is correct for the first one only",
                "use one step, algorithm=ppo, or algorithm.allow_off_policy_steps=true",
            )
            if shared:
                return


def _check_critic(config: Config) -> None:
    advantage = config.algorithm.estimator
    for name, agent in local_agents(config).items():
        critic = agent.critic.kind
        setting = f"{'' if critic is config.critic.kind else f'task.agents.{name}.'}critic={critic.value}"
        if advantage.needs_critic and critic is CriticKind.none:
            raise ConfigError(
                setting,
                f"has no values, which algorithm.advantage={config.algorithm.advantage} needs",
                "use critic=separate or critic=value_head, or an algorithm without a critic, such as algorithm=grpo",
            )
        if not advantage.allows_critic and critic is not CriticKind.none:
            raise ConfigError(
                setting,
                f"trains values that algorithm.advantage={config.algorithm.advantage} does not use",
                "use critic=none, or an algorithm with a critic, such as algorithm=ppo",
            )
        if config.algorithm.needs_centralized_critic and critic not in (CriticKind.centralized, CriticKind.none):
            raise ConfigError(
                setting,
                "reads one agent's rows only, and algorithm.needs_centralized_critic=true (algorithm=mappo) requires "
                "a critic that reads observations and responses of all agents",
                "use critic=centralized, or algorithm=ppo, which allows any critic",
            )
        if (critic is CriticKind.centralized) is not (config.critic.kind is CriticKind.centralized):
            raise ConfigError(setting, "differs between agents", "use critic=centralized for all agents, or for none")
        if isinstance(agent.critic, CentralizedCriticConfig):
            _check_centralized(config, agent.critic)
        if config.algorithm.truncation is Truncation.bootstrap and critic is CriticKind.none:
            raise ConfigError(
                "algorithm.truncation=bootstrap",
                "needs a critic's value of the last state, and critic=none",
                "use none, penalty or mask",
            )


def _check_centralized(config: Config, critic: CentralizedCriticConfig) -> None:
    if config.algorithm.turn_value is TurnValue.post:
        raise ConfigError(
            "algorithm.turn_value=post",
            "is the value after a response, and critic=centralized has read simultaneous responses of others by then",
            "use first, mean or final, or critic=separate",
        )
    limit = critic.context_limit
    most = max(agent.rollout.max_new_tokens for agent in config.task.agents.values())
    if limit is not None and limit <= most:
        raise ConfigError(
            f"critic.context_limit={limit}",
            f"is too small for a response of rollout.max_new_tokens={most} and its prompt",
            f"use more than {most}, or null",
        )


def _check_applicability(config: Config) -> Iterator[ConfigError]:
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


def _check_buffer_requirements(config: Config) -> Iterator[ConfigError]:
    """Requirements of an algorithm on the buffer, its scores and its sampler."""
    algorithm, rollout, reward = config.algorithm, config.rollout, config.reward
    advantage, correction = algorithm.estimator, algorithm.behavior_correction
    several = advantage.needs_group or algorithm.reweight.method is not Reweight.none
    if several and rollout.num_generations < 2:
        setting = (
            f"reweight.method={algorithm.reweight.method.value}"
            if not advantage.needs_group
            else (f"advantage={advantage.value}")
        )
        yield ConfigError(
            f"rollout.num_generations={rollout.num_generations}",
            f"is too small: algorithm.{setting} compares the responses to a prompt",
            "use one of " + " ".join(format_divisors(rollout.buffer_size).split()[1:]),
        )
    if advantage is Advantage.greedy_baseline and Processor.zscore in reward.processor:
        yield ConfigError(
            "reward.processor=[zscore]",
            "centres the scores of greedy responses separately, and algorithm.advantage=greedy_baseline subtracts them",
            "remove zscore",
        )
    if algorithm.turn_value is TurnValue.post and (
        algorithm.credit is not Credit.turn or algorithm.value_unit is not ValueUnit.turn
    ):
        yield ConfigError(
            "algorithm.turn_value=post",
            "is one value for a whole response",
            "set algorithm.credit=turn algorithm.value_unit=turn",
        )
    once = isinstance(config.task, ConversationConfig) and config.task.is_one_turn_per_agent
    if algorithm.turn_value is TurnValue.post and not once:
        yield ConfigError(
            "algorithm.turn_value=post",
            "is one value for a whole response, and this task's responses may have several turns",
            "use first, mean or final, or task.protocol=parallel or sequential with task.num_turns=1",
        )
    filters = _has_filters(config)
    if correction.level is not WeightLevel.none and not filters and not rollout.recompute_logprobs:
        yield ConfigError(
            f"algorithm.behavior_correction.level={correction.level.value}",
            f"has no effect: rollout={rollout.kind} without filters samples from the policy",
            "use none, or set rollout.recompute_logprobs=true, or one of rollout.top_p top_k min_p repetition_penalty",
        )
    low, high = correction.band_low, correction.band_high
    if (low is None) != (high is None) or (low is not None and high is not None and low >= high):
        yield ConfigError(
            f"algorithm.behavior_correction.band_low={low} band_high={high}",
            "are not an interval",
            "set both, the first below the second, or neither",
        )
    yield from _check_filtered_weights(config)


def _has_filters(config: Config) -> bool:
    return any(agent.rollout.has_filters for agent in config.task.agents.values())


def _check_filtered_weights(config: Config) -> Iterator[ConfigError]:
    """Weights relative to a filtered distribution: at most the probability that the policy stays within the filter."""
    correction = config.algorithm.behavior_correction
    if correction.level is WeightLevel.none or not _has_filters(config):
        return
    filters = "rollout.top_p top_k min_p repetition_penalty min_new_tokens"
    if correction.level is WeightLevel.sequence:
        yield ConfigError(
            "algorithm.behavior_correction.level=sequence",
            "has weights that vanish with the length of a response where sampling is filtered: each is at most the "
            "probability that no token of the policy is filtered",
            f"use token, or remove the filters ({filters})",
        )
    if correction.band_low is not None and correction.band_high is not None:
        yield ConfigError(
            f"algorithm.behavior_correction.band_low={correction.band_low} band_high={correction.band_high}",
            "would mask tokens for the share that a filter removes, before any update",
            f"use null and null (cap limits the weights), or remove the filters ({filters})",
        )


def _check_terms(config: Config) -> Iterator[ConfigError]:
    """Without advantages, another term of the loss has to train the policy, and its teacher is another policy."""
    algorithm = config.algorithm
    if algorithm.estimator is Advantage.none and not (algorithm.kl.loss.coef or algorithm.positive_nll.coef):
        yield ConfigError(
            "algorithm.advantage=none",
            "leaves the policy without a loss",
            "set algorithm.kl.loss.coef, for the KL to actor.reference, or algorithm.positive_nll.coef",
        )
    if algorithm.estimator is Advantage.none and algorithm.objective != Objective.on_policy:
        yield ConfigError(
            f"algorithm.objective={algorithm.objective}",
            "has no effect: advantage=none has no advantages",
            "use on_policy",
        )
    steps = max((policy_steps(config, agent) for agent in local_agents(config).values() if not agent.frozen), default=1)
    if algorithm.estimator is Advantage.none and algorithm.kl.loss.coef and algorithm.kl.loss.estimator != "full":
        stale = f"a buffer has {steps} optimizer steps" if steps > 1 else "rollout.ahead=1 samples with earlier weights"
        if steps > 1 or getattr(config.rollout, "ahead", 0):
            yield ConfigError(
                f"algorithm.kl.loss.estimator={algorithm.kl.loss.estimator}",
                f"estimates the KL at tokens that the current policy has sampled, and {stale}",
                "use algorithm.kl.loss.estimator=full"
                + (
                    ", or algorithm.mini_batch_size=null algorithm.ppo_epochs=1"
                    if steps > 1
                    else ", or rollout.ahead=0"
                ),
            )
    if algorithm.estimator is Advantage.none and algorithm.kl.loss.coef and not algorithm.positive_nll.coef:
        for name, agent in local_agents(config).items():
            if not agent.frozen and is_default_reference(agent.actor):
                yield ConfigError(
                    f"task.agents.{name}.actor.reference={agent.actor.reference}",
                    "is the policy before training, which has nothing to teach with algorithm.advantage=none",
                    "use actor.reference=FOLDER with a teacher's model, or actor.reference=RUN",
                )


def _check_ratio_base(config: Config) -> Iterator[ConfigError]:
    """Requirements of a ratio to the sampler: its log-probabilities before filters are in the ratio itself."""
    if config.algorithm.ratio_base is not RatioBase.sampler:
        return
    if config.rollout.recompute_logprobs:
        yield ConfigError(
            "rollout.recompute_logprobs=true",
            "computes log-probabilities that algorithm.ratio_base=sampler does not use",
            "use false, or algorithm.ratio_base=policy",
        )
    level = config.algorithm.behavior_correction.level
    if level is not WeightLevel.none and not _has_filters(config):
        yield ConfigError(
            f"algorithm.behavior_correction.level={level.value}",
            "would correct for the sampler twice: with algorithm.ratio_base=sampler the ratio is to the sampler",
            "use none, or algorithm.ratio_base=policy",
        )


def _check_kl(config: Config) -> Iterator[ConfigError]:
    kl, size = config.algorithm.kl, config.rollout.buffer_size
    if kl.reward.coef and kl.loss.coef and not kl.allow_both:
        yield ConfigError(
            f"algorithm.kl.reward.coef={kl.reward.coef} algorithm.kl.loss.coef={kl.loss.coef}",
            "penalise the same divergence twice",
            "set one to 0, or algorithm.kl.allow_both=true",
        )
    if kl.reward.target is not None and not kl.reward.coef:
        yield ConfigError(
            f"algorithm.kl.reward.target={kl.reward.target}",
            "adapts a coefficient that is 0",
            "set algorithm.kl.reward.coef to the initial coefficient",
        )
    # A buffer changes the coefficient by a factor of at least 1 - 0.2 * size / horizon, which must be positive.
    if kl.reward.target is not None and kl.reward.horizon is not None and size >= 5 * kl.reward.horizon:
        yield ConfigError(
            f"algorithm.kl.reward.horizon={kl.reward.horizon}",
            f"lets one buffer of rollout.buffer_size={size} lower the coefficient to 0 or below",
            f"use more than a fifth of the buffer, at least {size // 5 + 1}; 10000 is usual",
        )
    if kl.loss.estimator == "k1" and kl.loss.coef:
        yield ConfigError(
            "algorithm.kl.loss.estimator=k1",
            "has a loss gradient of zero mean",
            "use k2, k3, k1+ or full",
        )


ALGORITHM_RULES = (
    _check_steps,
    _check_critic,
    _check_kl,
    _check_terms,
    _check_applicability,
    _check_ratio_base,
    _check_buffer_requirements,
)
"""Each rule yields all errors, or raises the first."""
