"""Rules of `algorithm`: valid combinations of its keys with critics, buffers and rewards."""

from __future__ import annotations

from collections.abc import Iterator

from ippo_cli.config.applicability import check_applicability
from ippo_cli.config.batch_sizes import format_divisors, policy_steps
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.references import is_default_reference
from ippo_cli.config.schema import (
    Advantage,
    CentralizedCriticConfig,
    Config,
    ConversationConfig,
    Credit,
    CriticKind,
    Objective,
    OptimizedCriticConfig,
    Processor,
    RatioBase,
    Reweight,
    Truncation,
    TurnValue,
    ValueUnit,
    WeightLevel,
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
    check_applicability,
    _check_ratio_base,
    _check_buffer_requirements,
)
"""Each rule yields all errors, or raises the first."""
