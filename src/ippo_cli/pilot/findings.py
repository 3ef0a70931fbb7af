"""Conditions that will stop a run from learning, and that only the measurements of a pilot show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from ippo_cli.config.schema import Config
from ippo_cli.config.text import format_count, join_names
from ippo_cli.diagnosis.conditions.kl import DOMINANT_STRENGTH, describe_strong_kl, kl_strength
from ippo_cli.diagnosis.conditions.scores import NEARLY_ALL, describe_equal_scores
from ippo_cli.diagnosis.finding import Certainty, Evidence, Finding, Observations, format_value, metric_evidence
from ippo_cli.diagnosis.rates import default_rate, describe_rate
from ippo_cli.diagnosis.series import trained_agents
from ippo_cli.pilot.measure import Measurement, PolicyMeasurement
from ippo_cli.pilot.statistics import Estimate
from ippo_cli.pilot.step import PolicyStep

# KL of the first step, in `pilot.kl`: a nat per token with its default. Runs of small models learn below it, and lose
# their entropy above it. Adam's first step is its largest: later ones average gradients that disagree.
LARGE_STEP = 50.0
SMALL_CHANGE = 1e-3  # nats per token that all steps of a run together change a policy by, at most
CAREFUL_STEP = 0.2  # of the largest rate, to replace a rate that is far too low
FEW_DIFFERING = 0.1  # fraction of prompts with a signal, at most, that makes a run slow
LOW_TEMPERATURE = 0.5  # below which responses to a prompt are nearly equal
MIN_RUN_SIGNAL = 1.0  # norm of the summed signal of all steps, by that of their noise
PARSED_PARTS = ("found", "parsed", "format")  # parts of rewards: whether a response has the form of an answer
GROUP_BASELINES = ("group", "leave_one_out")  # values of `algorithm.advantage`
STRICT, FLEXIBLE = "strict", "flexible"  # parts of rewards with a strict rule that reads fewer answers


class Verdict(str, Enum):
    """Whether a run will learn."""

    no_signal = "no signal"
    too_large_steps = "too large steps"
    slow = "slow"
    learns = "learns"


@dataclass(frozen=True, slots=True)
class NamedFinding:
    """A finding by name, and the verdict that it implies at best."""

    name: str
    finding: Finding
    verdict: Verdict


def _find_equal_scores(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """Scores that are equal everywhere, or within each prompt."""
    equal, by_prompt = list[str](), list[str]()
    for name in trained_agents(observations.config):
        spread = measurement.spreads[name]
        if spread.compared and spread.differing.value == 0:
            (by_prompt if spread.between.value > 0 else equal).append(name)
    if equal:
        spread = measurement.spreads[equal[0]]
        where = f"in {measurement.episodes} responses to {format_count(spread.prompts, 'prompt')}"
        yield NamedFinding("equal_scores", describe_equal_scores(observations, equal, where), Verdict.no_signal)
    if by_prompt:
        spread, rollout = measurement.spreads[by_prompt[0]], observations.config.rollout
        finding = Finding(
            agents=tuple(by_prompt),
            text=f"scores of {join_names(by_prompt)} depend on the prompt alone: no response to one of "
            f"{spread.compared} prompts scores better than another one",
            advice="let the reward compare responses, or sample more different ones",
            evidence=(Evidence("prompts with scores that differ", _format(spread.differing)),),
            overrides=(f"rollout.temperature={max(1.0, 1.5 * rollout.temperature):g}", "reward=..."),
            certainty=Certainty.certain,
        )
        yield NamedFinding("scores_by_prompt", finding, Verdict.no_signal)


def _find_few_differing(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """Few prompts have responses that differ in score."""
    names = [name for name in trained_agents(observations.config) if _differs_rarely(measurement, name)]
    if names and not observations.config.rollout.refill_rounds:  # a refill replaces prompts without differences
        spread = measurement.spreads[names[0]]
        finding = Finding(
            agents=tuple(names),
            text=f"only {spread.differing.value:.1%} of the prompts of {join_names(names)} have responses that differ "
            "in score",
            advice="most of each buffer teaches nothing: use prompts of medium difficulty, or draw others instead",
            evidence=(Evidence("prompts with scores that differ", _format(spread.differing)),),
            overrides=_difference_overrides(observations.config),
        )
        yield NamedFinding("few_differing", finding, Verdict.slow)


def _differs_rarely(measurement: Measurement, agent: str) -> bool:
    differing = measurement.spreads[agent].differing
    return differing.value > 0 and differing.high < FEW_DIFFERING


def _difference_overrides(config: Config) -> tuple[str, ...]:
    """Overrides that give more responses of a prompt different scores."""
    rollout = config.rollout
    refills = rollout.num_generations > 1 and not rollout.refill_rounds
    return (
        *(("rollout.temperature=1.0",) if rollout.temperature < LOW_TEMPERATURE else ()),
        *(("rollout.refill_rounds=4",) if refills else ()),
        f"rollout.num_generations={2 * max(rollout.num_generations, 4)}",
    )


def _find_removed_signal(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """The advantages are 0 although the scores differ."""
    row, config = measurement.row, observations.config
    names = [
        name
        for name in trained_agents(config)
        if row.get(f"{name}/targets/zero_advantage_fraction", 0.0) >= NEARLY_ALL
        and measurement.spreads[name].differing.value > 0
    ]
    if names:
        is_single = config.rollout.num_generations == 1 and config.algorithm.advantage in GROUP_BASELINES
        group = "; a group of one response has no other to compare with" if is_single else ""
        finding = Finding(
            agents=tuple(names),
            text=f"algorithm.advantage={config.algorithm.advantage} gives all responses of {join_names(names)} the "
            f"advantage 0, although their scores differ{group}",
            advice="compare several responses, or use another baseline",
            evidence=tuple(metric_evidence([row], f"{name}/targets/zero_advantage_fraction") for name in names),
            overrides=("rollout.num_generations=8", "algorithm.advantage=reward_to_go")
            if is_single
            else ("algorithm.advantage=reward_to_go",),
            certainty=Certainty.certain,
        )
        yield NamedFinding("removed_signal", finding, Verdict.no_signal)


def _find_no_update(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
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


def _find_no_gradient(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """Agents without a gradient in their policy."""
    for policy in measurement.policies:
        if policy.gradient is None:
            continue
        silent = [
            name
            for name, signal in policy.gradient.by_agent.items()
            if signal.norm == 0 and not _differs_rarely(measurement, name)
        ]
        if silent:
            finding = Finding(
                agents=tuple(silent),
                text=f"the gradient of {join_names(silent)} is 0: no response of it is trained on",
                advice="check what the reward, masks and baselines leave of its responses",
                certainty=Certainty.certain,
            )
            yield NamedFinding("no_gradient", finding, Verdict.no_signal)


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


def _find_step_size(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """Steps that change a policy by too much, or by nothing in a whole run."""
    config = observations.config
    limit = config.pilot.kl
    for policy in measurement.policies:
        if policy.step is None or _no_update_reason(policy, config) is not None:
            continue
        step, agent = policy.step, config.task.agents[policy.agents[0]]
        kl = step.at_configured_rate.kl
        evidence = (
            Evidence("KL of one step, nats per token", _format(kl)),
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


def _find_noise(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
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
                evidence=(Evidence("squared signal to noise of a step", _format(ratio)),),
                overrides=(
                    f"rollout.buffer_size={factor * size} algorithm.mini_batch_size={factor * _step_rows(config)}",
                ),
            )
            yield NamedFinding("noise", finding, Verdict.slow)


def _step_rows(config: Config) -> int:
    return config.algorithm.mini_batch_size or config.rollout.buffer_size


def _find_strong_kl(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """A KL term that allows almost no gain."""
    names = [
        name for name in trained_agents(observations.config) if kl_strength(observations, name) > DOMINANT_STRENGTH
    ]
    if names:
        yield NamedFinding("kl_coefficient", describe_strong_kl(observations, names), Verdict.slow)


def _find_unparsed(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """Answers that the reward never finds, by the parts that it reports."""
    row = measurement.row
    for name in trained_agents(observations.config):
        parts = {part: row.get(f"{name}/score/part/{part}", math.nan) for part in (*PARSED_PARTS, STRICT, FLEXIBLE)}
        missing = [part for part in PARSED_PARTS if parts[part] <= 1 - NEARLY_ALL]
        is_too_strict = parts[STRICT] == 0 and parts[FLEXIBLE] > 0
        if not missing and not is_too_strict:
            continue
        part = STRICT if is_too_strict else missing[0]
        rule = "its strict rule reads no answer where the flexible one does" if is_too_strict else "none has the form"
        finding = Finding(
            agents=(name,),
            text=f"the reward finds no answer in the responses of {name}: {rule}",
            advice="ask for the form in the prompt, or use a rule that reads these responses (examples above)",
            evidence=(metric_evidence([row], f"{name}/score/part/{part}"),),
            overrides=("reward.match=flexible",) if is_too_strict else ("task.agents.NAME.template='...'",),
        )
        yield NamedFinding("unparsed", finding, Verdict.slow)
        return


Check = Callable[[Measurement, Observations], Iterator[NamedFinding]]
CHECKS: Sequence[Check] = (
    _find_unparsed,
    _find_no_update,
    _find_equal_scores,
    _find_removed_signal,
    _find_no_gradient,
    _find_step_size,
    _find_strong_kl,
    _find_few_differing,
    _find_noise,
)


def _format(estimate: Estimate) -> str:
    interval = f" [{format_value(estimate.low)}, {format_value(estimate.high)}]" if math.isfinite(estimate.low) else ""
    return f"{format_value(estimate.value)}{interval}"


def _round_down(rate: float) -> str:
    """A rate with one significant digit, not above it."""
    if not math.isfinite(rate) or rate <= 0:
        return "..."
    unit = 10.0 ** math.floor(math.log10(rate))
    return f"{math.floor(rate / unit + 1e-9) * unit:g}"
