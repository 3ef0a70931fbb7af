"""Conditions of scores that will stop a run from learning, and that only the measurements of a pilot show."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ippo_cli.config.schema import Config, Match
from ippo_cli.config.text import format_count, join_names
from ippo_cli.diagnosis.conditions.responses import FIXED_LENGTHS, MOST
from ippo_cli.diagnosis.conditions.scores import NEARLY_ALL, describe_equal_scores
from ippo_cli.diagnosis.finding import Certainty, Evidence, Finding, Observations, metric_evidence
from ippo_cli.diagnosis.series import trained_agents
from ippo_cli.pilot.findings import NamedFinding, Verdict, format_estimate
from ippo_cli.pilot.measure import Measurement

FEW_DIFFERING = 0.1  # fraction of prompts with a signal, at most, that makes a run slow
RARE = 0.05  # fraction of the responses with another score than the most frequent one, at most, that makes a run slow
REPEATED = 0.5  # fraction of the variance within prompts that the reward repeats, at most, that makes a run slow
LOW_TEMPERATURE = 0.5  # below which responses to a prompt are nearly equal
PARSED_PARTS = ("found", "parsed", "format")  # parts of rewards: whether a response has the form of an answer
GROUP_BASELINES = ("group", "leave_one_out")  # values of `algorithm.advantage`
STRICT, FLEXIBLE = "strict", "flexible"  # parts of rewards with a strict rule that reads fewer answers


def find_unparsed(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
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


def find_hidden_by_length(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """Nearly all responses are truncated, and their scores do not differ: whole ones might."""
    row, config = measurement.row, observations.config
    names = [
        name
        for name in trained_agents(config)
        if MOST <= row.get(f"{name}/rollout/truncated_fraction", 0.0) < NEARLY_ALL  # above, the doctor's condition
        and not isinstance(config.task, FIXED_LENGTHS)
        and (measurement.spreads[name].differing.value == 0 or _is_rare(measurement, name))
    ]
    if names:
        longest = max(config.task.agents[name].rollout.max_new_tokens for name in names)
        finding = Finding(
            agents=tuple(names),
            text=f"{row[f'{names[0]}/rollout/truncated_fraction']:.1%} of the responses of {join_names(names)} were "
            f"truncated at rollout.max_new_tokens={longest}, and almost none has another score",
            advice="increase the limit, or ask for shorter responses",
            evidence=tuple(metric_evidence([row], f"{name}/rollout/truncated_fraction") for name in names),
            overrides=(f"rollout.max_new_tokens={4 * longest}",),
        )
        yield NamedFinding("truncated", finding, Verdict.slow)


def find_equal_prompts(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """Prompts that do not contain what the reference answers depend on."""
    names = [name for name in trained_agents(observations.config) if name in measurement.equal_prompts]
    if names:
        prompts = measurement.spreads[names[0]].prompts
        finding = Finding(
            agents=tuple(names),
            text=f"{join_names(names)} received the same prompt for {prompts} rows with different reference answers",
            advice="name the field of the question in the template",
            evidence=(Evidence("rows", str(prompts)),),
            overrides=(f"task.agents.{names[0]}.template='{{FIELD}}'",),
            certainty=Certainty.certain,
        )
        yield NamedFinding("equal_prompts", finding, Verdict.slow)


def find_equal_scores(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
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
            evidence=(Evidence("prompts with scores that differ", format_estimate(spread.differing)),),
            overrides=(f"rollout.temperature={max(1.0, 1.5 * rollout.temperature):g}", "reward=..."),
            certainty=Certainty.certain,
        )
        yield NamedFinding("scores_by_prompt", finding, Verdict.no_signal)


def find_removed_signal(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
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


def find_random_scores(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """A reward that scores the same response differently."""
    repeatable = measurement.repeatable
    names = [
        name
        for name in trained_agents(observations.config)
        if (own := repeatable[name]).value < 1 and (own.low <= 0 or own.high < REPEATED)
    ]
    if names:
        own = repeatable[names[0]]
        finding = Finding(
            agents=tuple(names),
            text=f"the reward scores the same responses of {join_names(names)} differently: another call repeats "
            f"{max(own.value, 0.0):.0%} of the variance within prompts, {max(own.high, 0.0):.0%} at most",
            advice="remove chance from the reward, or average several calls: the rest of the scores is noise",
            evidence=(Evidence("repeated fraction of the variance within prompts", format_estimate(own)),),
            overrides=("reward=...",),
        )
        yield NamedFinding("random_scores", finding, Verdict.slow)


def find_few_differing(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """Few prompts have responses that differ in score."""
    names = [name for name in trained_agents(observations.config) if differs_rarely(measurement, name)]
    if names and not observations.config.rollout.refill_rounds:  # a refill replaces prompts without differences
        spread = measurement.spreads[names[0]]
        finding = Finding(
            agents=tuple(names),
            text=f"only {spread.differing.value:.1%} of the prompts of {join_names(names)} have responses that differ "
            "in score",
            advice="most of each buffer teaches nothing: use prompts of medium difficulty, or draw others instead",
            evidence=(Evidence("prompts with scores that differ", format_estimate(spread.differing)),),
            overrides=_difference_overrides(observations.config),
        )
        yield NamedFinding("few_differing", finding, Verdict.slow)


def differs_rarely(measurement: Measurement, agent: str) -> bool:
    differing = measurement.spreads[agent].differing
    return differing.value > 0 and differing.high < FEW_DIFFERING


def find_rare_scores(measurement: Measurement, observations: Observations) -> Iterator[NamedFinding]:
    """Nearly all responses have the same score, on prompts of which not all lack a difference."""
    config = observations.config
    names = [
        name
        for name in trained_agents(config)
        if _is_rare(measurement, name) and not (differs_rarely(measurement, name) and not config.rollout.refill_rounds)
    ]
    if names:
        spread = measurement.spreads[names[0]]
        finding = Finding(
            agents=tuple(names),
            text=f"all but {spread.uncommon.value:.1%} of the responses of {join_names(names)} have the same score",
            advice="begin with easier prompts or a warmer start, or use a reward that scores parts of an answer",
            evidence=(Evidence("responses with another score", format_estimate(spread.uncommon)),),
            overrides=(
                *(("reward.match=characters",) if _matches_exactly(config) else ()),
                f"rollout.buffer_size={4 * config.rollout.buffer_size}",
            ),
        )
        yield NamedFinding("rare_scores", finding, Verdict.slow)


def _is_rare(measurement: Measurement, agent: str) -> bool:
    """Whether few responses, but some, differ in score from the others."""
    spread = measurement.spreads[agent]
    return spread.uncommon.value > 0 and spread.uncommon.high < RARE and spread.differing.value > 0


def _matches_exactly(config: Config) -> bool:
    return config.reward.kind == "exact_match" and getattr(config.reward, "match", None) == Match.exact


def _difference_overrides(config: Config) -> tuple[str, ...]:
    """Overrides that give more responses of a prompt different scores."""
    rollout = config.rollout
    refills = rollout.num_generations > 1 and not rollout.refill_rounds
    return (
        *(("rollout.temperature=1.0",) if rollout.temperature < LOW_TEMPERATURE else ()),
        *(("rollout.refill_rounds=4",) if refills else ()),
        f"rollout.num_generations={2 * max(rollout.num_generations, 4)}",
    )
