"""The report of a pilot: as text for people, and as JSON for programs."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ippo_cli.config.text import escape_controls, format_table, truncate_text
from ippo_cli.pilot.findings import NamedFinding
from ippo_cli.pilot.measure import Measurement, PolicyMeasurement
from ippo_cli.pilot.outlook import forecast_outcomes
from ippo_cli.pilot.size import PilotSize
from ippo_cli.pilot.statistics import Estimate
from ippo_cli.pilot.verdict import Assessment
from ippo_cli.runs.json_values import replace_non_finite

WIDTH = 100
EXAMPLES = 3


def describe_size(size: PilotSize) -> str:
    """What a pilot will sample at most."""
    repeats = f" and {size.repeats} more to each of {size.repeated_prompts}" if size.repeats else ""
    return (
        f"pilot: {size.generations} responses to each of {size.prompts} prompts{repeats}, at most {size.tokens} "
        f"tokens, {size.tokens / size.run_tokens:.2g} of the run's"
    )


def format_report(measurement: Measurement, assessment: Assessment) -> str:
    """Tables of the measurements, then findings, verdict and forecast."""
    lines = [
        f"{measurement.episodes} responses, {measurement.tokens} tokens "
        f"({measurement.tokens / measurement.size.run_tokens:.2g} of the run's at most)",
        "",
        *_score_lines(measurement),
        "",
        *_response_lines(measurement),
        "",
        *_policy_lines(measurement.policies),
        "",
        *_finding_lines(assessment.findings),
        _verdict_line(assessment),
        forecast_outcomes(to_json_data(measurement, assessment)).line,
    ]
    return "\n".join(lines)


def format_failure(assessment: Assessment) -> str:
    """The report of a pilot that an error ended."""
    return "\n".join([*_finding_lines(assessment.findings), _verdict_line(assessment)])


def _verdict_line(assessment: Assessment) -> str:
    return f"verdict: {assessment.verdict.value} ({assessment.reason})"


def _score_lines(measurement: Measurement) -> list[str]:
    head = ["scores", "mean", "std", "within prompts", "between", "prompts that differ", "oracle", "critic"]
    rows = [head]
    for name, spread in measurement.spreads.items():
        fit = measurement.critics.get(name)
        rows.append(
            [
                name,
                _interval(spread.mean),
                _number(spread.std),
                _number(_root(spread.within.value)),
                _number(_root(spread.between.value)),
                _interval(spread.differing),
                _interval(spread.oracle),
                "-" if fit is None else f"{_number(fit.before)} -> {_number(fit.after)}",
            ]
        )
    return format_table(rows, width=WIDTH)


def _response_lines(measurement: Measurement) -> Iterator[str]:
    row, seconds = measurement.row, measurement.seconds
    head = ["responses", "tokens", "truncated", "failed", *(part for part in _part_names(measurement))]
    rows = [head]
    for name in measurement.spreads:
        rows.append(
            [
                name,
                _number(row.get(f"{name}/rollout/response_length", math.nan)),
                _number(row.get(f"{name}/rollout/truncated_fraction", math.nan)),
                _number(row.get(f"{name}/score/failed_fraction", math.nan)),
                *(_number(row.get(f"{name}/score/part/{part}", math.nan)) for part in _part_names(measurement)),
            ]
        )
    yield from format_table(rows, width=WIDTH)
    per_response = seconds.get("score", 0.0) / max(measurement.episodes, 1)
    yield f"reward: {_number(per_response)} s per response; sampling: {_number(seconds.get('rollout', 0.0))} s"
    repeated = {name: own for name, own in measurement.repeatable.items() if not math.isnan(own.value)}
    if any(own.value < 1 for own in repeated.values()):
        parts = "; ".join(f"{name} {_interval(own)}" for name, own in repeated.items())
        yield f"fraction of the variance within prompts that the reward repeats for the same responses: {parts}"
    for number, sample in enumerate(measurement.samples[:EXAMPLES], start=1):
        for turn in sample["turns"]:
            score = "-" if turn["score"] is None else _number(turn["score"])
            cut = ", truncated" if turn["cut"] else ""
            text = " ".join(escape_controls(turn["response"]).split())
            yield truncate_text(f"  {number} {turn['agent']} ({score}{cut}): {text}", WIDTH)


def _part_names(measurement: Measurement) -> list[str]:
    names = (key.partition("/score/part/")[2] for key in measurement.row if "/score/part/" in key)
    return list(dict.fromkeys(names))[:4]


def _policy_lines(policies: Sequence[PolicyMeasurement]) -> Iterator[str]:
    rows = [["gradient", "norm", "share", "cosine of halves", "signal / noise of a step", "steps"]]
    shares = gradient_shares(policies)
    for policy in policies:
        if policy.gradient is None:
            rows.append([policy.name, "not measured: sharded weights", "", "", "", str(policy.steps)])
            continue
        for name, signal in policy.gradient.by_agent.items():
            ratio = signal.squared_ratio
            rows.append(
                [
                    name,
                    _number(signal.norm),
                    _number(shares[name]),
                    _number(signal.cosine),
                    _interval(ratio.transform(_root)),
                    str(policy.steps),
                ]
            )
    yield from format_table(rows, width=WIDTH)
    yield ""
    yield from format_table([*_step_rows(policies)], width=WIDTH)


def _step_rows(policies: Sequence[PolicyMeasurement]) -> Iterator[list[str]]:
    yield [
        "one step",
        "learning rate",
        "KL per token",
        "99 % |log ratio|",
        "clipped",
        "gain, first order",
        "KL limit at",
    ]
    for policy in policies:
        if policy.step is None:
            yield [policy.name, "not measured", "", "", "", "", ""]
            continue
        change = policy.step.at_configured_rate
        yield [
            policy.name,
            f"{policy.step.learning_rate:g}",
            _interval(change.kl),
            _number(change.largest_logratio),
            _number(change.clip_fraction),
            _interval(policy.step.gain),
            _number(policy.step.rate_at_limit),
        ]


def gradient_shares(policies: Sequence[PolicyMeasurement]) -> dict[str, float]:
    """Each agent's gradient norm as a fraction of the sum over the team; NaN where all are 0."""
    norms = {
        name: signal.norm
        for policy in policies
        if policy.gradient is not None
        for name, signal in policy.gradient.by_agent.items()
    }
    total = sum(norms.values())
    return {name: norm / total if total else math.nan for name, norm in norms.items()}


def _finding_lines(findings: Sequence[NamedFinding]) -> Iterator[str]:
    if not findings:
        yield "nothing was found that will stop learning"
    for number, one in enumerate(findings, start=1):
        tries = f": {one.finding.overrides[0]}" if one.finding.overrides else ""
        yield from textwrap.wrap(
            escape_controls(f"{number}. {one.finding.line}{tries}"),
            WIDTH,
            subsequent_indent="   ",
            break_on_hyphens=False,
        )


def to_json_data(measurement: Measurement | None, assessment: Assessment) -> dict[str, Any]:
    """The pilot for `json.dumps`; numbers that are not finite are null."""
    data: dict[str, Any] = {
        "verdict": assessment.verdict.value,
        "reason": assessment.reason,
        "findings": [
            {
                "name": one.name,
                "verdict": one.verdict.value,
                "agents": list(one.finding.agents),
                "finding": one.finding.text,
                "advice": one.finding.advice,
                "try": list(one.finding.overrides),
                "evidence": [{"name": part.name, "values": part.values} for part in one.finding.evidence],
            }
            for one in assessment.findings
        ],
    }
    if measurement is None:
        return replace_non_finite(data)
    data = replace_non_finite(data | _measured_data(measurement))
    return data | {"forecast": asdict(forecast_outcomes(data))}


def _measured_data(measurement: Measurement) -> dict[str, Any]:
    return {
        "size": asdict(measurement.size),
        "episodes": measurement.episodes,
        "tokens": measurement.tokens,
        "iterations": measurement.iterations,
        "scores": {name: asdict(spread) for name, spread in measurement.spreads.items()},
        "equal_prompts": list(measurement.equal_prompts),
        "repeatable": {name: asdict(own) for name, own in measurement.repeatable.items()},
        "critics": {name: asdict(fit) for name, fit in measurement.critics.items()},
        "policies": {
            policy.name: {
                "agents": policy.agents,
                "steps": policy.steps,
                "gradient": None if policy.gradient is None else asdict(policy.gradient),
                "bonus": policy.bonus,
                "step": None if policy.step is None else _without_stats(asdict(policy.step)),
            }
            for policy in measurement.policies
        },
        "gradient_shares": gradient_shares(measurement.policies),
        "metrics": dict(measurement.row),
        "seconds": dict(measurement.seconds),
        "examples": list(measurement.samples[:EXAMPLES]),
    }


def _without_stats(step: Mapping[str, Any]) -> dict[str, Any]:
    """A step without the metrics of its update, which are in those of the iteration."""
    return {name: value for name, value in step.items() if name != "stats"}


def _root(value: float) -> float:
    """The square root; 0 for what is below 0."""
    return math.sqrt(max(value, 0.0)) if not math.isnan(value) else math.nan


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"


def _interval(estimate: Estimate) -> str:
    if math.isnan(estimate.low):
        return _number(estimate.value)
    half = (estimate.high - estimate.low) / 2
    if math.isclose(estimate.low + half, estimate.value, abs_tol=1e-3 * half):
        return f"{_number(estimate.value)} ±{half:.2g}"
    return f"{_number(estimate.value)} [{_number(estimate.low)}, {_number(estimate.high)}]"
