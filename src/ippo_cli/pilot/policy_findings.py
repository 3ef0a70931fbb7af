"""Conditions of policies, their gradients and steps that will stop a run from learning."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ippo_cli.config.schema import Config
from ippo_cli.config.text import format_count, join_names
from ippo_cli.diagnosis.conditions.kl import DOMINANT_STRENGTH, describe_strong_kl, kl_strength
from ippo_cli.diagnosis.finding import Certainty, Evidence, Finding, Observations, format_value
from ippo_cli.diagnosis.rates import default_rate, describe_rate
from ippo_cli.diagnosis.series import trained_agents
from ippo_cli.pilot.findings import NamedFinding, Verdict, format_estimate
from ippo_cli.pilot.measure import Measurement, PolicyMeasurement
from ippo_cli.pilot.score_findings import differs_rarely
from ippo_cli.pilot.step import PolicyStep

# KL of the first step, in `pilot.kl`: a nat per token with its default. Runs of small models learn below it, and lose
# their entropy above it. Adam's first step is its largest: later ones average gradients that disagree.
LARGE_STEP = 50.0
SMALL_CHANGE = 1e-3  # nats per token that all steps of a run together change a policy by, at most
CAREFUL_STEP = 0.2  # of the largest rate, to replace a rate that is far too low
DOMINANT_BONUS = 1.0  # gradient of the entropy bonus, by that of the scores
MIN_RUN_SIGNAL = 1.0  # norm of the summed signal of all steps, by that of their noise


def find_no_update(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """A policy that no step changes: no iteration with an update, or a rate of 0."""
    config = observations.config
    for policy in measurement.policies:
        agent = config.task.agents[policy.agents[0]]
        reason = _no_update_reason(policy, config)
        if reason is not None:
            text, overrides = reason
            finding = Finding(
                agents=policy.agents,
                text=f"the policy of {join_names(list(policy.agents))} is never changed: {text}",
                advice="correct what is trained, its rate or its schedule",
                evidence=(Evidence("actor.learning_rate", f"{agent.actor.learning_rate:g}"),),
                overrides=overrides,
                certainty=Certainty.certain,
            )
            yield NamedFinding("no_update", finding, Verdict.no_signal)


def _no_update_reason(policy: PolicyMeasurement, config: Config) -> tuple[str, tuple[str, ...]] | None:
    """Why no iteration changes a policy, and what would; None if some do."""
    agent = config.task.agents[policy.agents[0]]
    if agent.actor.learning_rate == 0:
        return "actor.learning_rate=0", (default_rate(agent),)
    if not policy.steps:
        warmup, rise = config.algorithm.critic_warmup, agent.actor.warmup_iterations
        if warmup >= rise:
            return f"algorithm.critic_warmup={warmup} is as long as the run", ("algorithm.critic_warmup=0",)
        return f"actor.warmup_iterations={rise} is as long as the run", ("actor.warmup_iterations=0",)
    return None


def find_no_gradient(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """Agents without a gradient in their policy."""
    for policy in measurement.policies:
        if policy.gradient is None:
            continue
        silent = [
            name
            for name, signal in policy.gradient.by_agent.items()
            if signal.norm == 0 and not differs_rarely(measurement, name)
        ]
        if silent:
            finding = Finding(
                agents=tuple(silent),
                text=f"the gradient of {join_names(silent)} is 0: no response of it is trained on",
                advice="check what the reward, masks and baselines leave of its responses",
                certainty=Certainty.certain,
            )
            yield NamedFinding("no_gradient", finding, Verdict.no_signal)


def find_step_size(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """Steps that change a policy by too much, or by nothing in a whole run."""
    config = observations.config
    limit = config.pilot.kl
    for policy in measurement.policies:
        if policy.step is None or _no_update_reason(policy, config) is not None:
            continue
        step, agent = policy.step, config.task.agents[policy.agents[0]]
        kl = step.at_configured_rate.kl
        evidence = (
            Evidence("KL of one step, nats per token", format_estimate(kl)),
            Evidence("99th percentile of |log ratio|", format_value(step.at_configured_rate.largest_logratio)),
        )
        if kl.value > LARGE_STEP * limit:
            finding = Finding(
                agents=policy.agents,
                text=f"one optimizer step changes the policy of {join_names(list(policy.agents))} by "
                f"{format_value(kl.value)} nats per token: {describe_rate(agent)} is too high",
                advice=f"lower it: about {format_value(step.rate_at_limit)} gives pilot.kl={limit:g}",
                evidence=evidence,
                overrides=(f"actor.learning_rate={_round_down(step.rate_at_limit)}",),
                certainty=Certainty.certain,
            )
            yield NamedFinding("large_step", finding, Verdict.too_large_steps)
        elif (largest := policy.steps**2 * max(kl.value, 0.0)) < SMALL_CHANGE and _has_gradient(step):
            known = math.isfinite(step.rate_at_limit)
            rate = f"actor.learning_rate={_round_down(CAREFUL_STEP * step.rate_at_limit)}"
            finding = Finding(
                agents=policy.agents,
                text=f"{format_count(policy.steps, 'optimizer step')} in the same direction would change the policy of "
                f"{join_names(list(policy.agents))} by {format_value(largest)} nats per token: "
                f"{describe_rate(agent)} is too low",
                advice="nothing moves in this run: raise the rate, or train longer",
                evidence=evidence,
                overrides=(rate if known else default_rate(agent),),
                certainty=Certainty.certain,
            )
            yield NamedFinding("small_step", finding, Verdict.slow)


def _has_gradient(step: PolicyStep) -> bool:
    """Whether the step had a gradient: without one, the rate is not the cause."""
    return any(value > 0 for name, value in step.stats.items() if name.endswith("/grad_norm"))


def find_noise(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """A gradient that is noise at the run's batch size, over all of its steps."""
    config = observations.config
    for policy in measurement.policies:
        if policy.gradient is None or not policy.steps:
            continue
        ratio = policy.gradient.whole.squared_ratio
        if math.isfinite(ratio.high) and policy.steps * ratio.high < MIN_RUN_SIGNAL**2:
            size = config.rollout.buffer_size
            factor = 2 ** math.ceil(math.log2(MIN_RUN_SIGNAL**2 / (policy.steps * max(ratio.high, 1e-6))))
            finding = Finding(
                agents=policy.agents,
                text=f"the gradient of {join_names(list(policy.agents))} is noise: in all {policy.steps} steps of the "
                f"run together its signal is at most {math.sqrt(policy.steps * max(ratio.high, 0.0)):.2g} times its "
                "noise",
                advice="use larger batches, more iterations, or a reward with more differences",
                evidence=(Evidence("squared signal to noise of a step", format_estimate(ratio)),),
                overrides=(
                    f"rollout.buffer_size={factor * size} algorithm.mini_batch_size={factor * _step_rows(config)}",
                ),
            )
            yield NamedFinding("noise", finding, Verdict.slow)


def _step_rows(config: Config) -> int:
    return config.algorithm.mini_batch_size or config.rollout.buffer_size


def find_strong_kl(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """A KL term that allows almost no gain."""
    names = [
        name for name in trained_agents(observations.config) if kl_strength(observations, name) > DOMINANT_STRENGTH
    ]
    if names:
        yield NamedFinding("kl_coefficient", describe_strong_kl(observations, names), Verdict.slow)


def find_strong_bonus(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """An entropy bonus that moves the policy more than its scores do."""
    coef = observations.config.algorithm.entropy_coef
    for policy in measurement.policies:
        has_signal = all(measurement.spreads[name].differing.value > 0 for name in policy.agents)
        if policy.bonus > DOMINANT_BONUS and has_signal:
            finding = Finding(
                agents=policy.agents,
                text=f"algorithm.entropy_coef={coef:g} is too high: its gradient is {format_value(policy.bonus)} times "
                f"that of the scores of {join_names(list(policy.agents))}, so that steps make responses "
                f"{'more random' if coef > 0 else 'less random'} first",
                advice="lower it",
                evidence=(Evidence("gradient of the entropy bonus, by that of the scores", f"{policy.bonus:.3g}"),),
                overrides=(f"algorithm.entropy_coef={format_value(coef / policy.bonus / 10)}",),
            )
            yield NamedFinding("entropy_coefficient", finding, Verdict.slow)


def _round_down(rate: float) -> str:
    """A rate with one significant digit, not above it."""
    if not math.isfinite(rate) or rate <= 0:
        return "..."
    unit = 10.0 ** math.floor(math.log10(rate))
    return f"{math.floor(rate / unit + 1e-9) * unit:g}"
