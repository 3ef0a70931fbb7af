"""The probability of each outcome of a run, from the report of its pilot. Does not import torch.

A multinomial regression with the weights of `outcomes.json`, which `scripts/bench/pilot_outcomes.py` fits to pilots of
runs with a known outcome.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("outcomes.json")
WORDS = {"never": "no progress", "slow": "slow", "learned": "learns", "collapsed": "collapses"}  # by recorded outcome
Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A number of a report; NaN if it is unknown."""

    meaning: str
    measure: Callable[[Report], float]


def _policies(report: Report) -> list[Mapping[str, Any]]:
    return list(report["policies"].values())


def _highest(values: Iterator[float | None]) -> float:
    return max((value for value in values if value is not None), default=math.nan)


def _lowest(values: Iterator[float | None]) -> float:
    return min((value for value in values if value is not None), default=math.nan)


def _agent_names(report: Report) -> list[str]:
    return [name for policy in _policies(report) for name in policy["agents"]]


def _step_kl(report: Report) -> float:
    steps = (policy["step"]["changes"][0]["kl"]["value"] for policy in _policies(report) if policy["step"])
    return math.log10(max(_highest(steps), 1e-9))


def _is_too_large(report: Report) -> bool:
    return any(finding["name"] == "large_step" for finding in report["findings"])


def _gain(report: Report) -> float:
    def ratio(gain: Mapping[str, Any]) -> float | None:
        if gain["value"] is None or gain["low"] is None:
            return None
        half = gain["value"] - gain["low"]
        return gain["value"] / half if half > 0 else 0.0

    if _is_too_large(report):  # a gain to first order says nothing about such a step
        return math.nan
    return _highest(ratio(policy["step"]["gain"]) for policy in _policies(report) if policy["step"])


def _signal(report: Report) -> float:
    ratios = (
        policy["gradient"]["whole"]["squared_ratio"]["value"] for policy in _policies(report) if policy["gradient"]
    )
    return math.log10(max(_highest(ratios), 1e-3))


FEATURES: Mapping[str, Feature] = {
    "step_kl": Feature(meaning="decimal logarithm of the KL of the first step, nats per token", measure=_step_kl),
    "large_step": Feature(
        meaning="1 with the finding `large_step`, else 0", measure=lambda report: float(_is_too_large(report))
    ),
    "gain": Feature(
        meaning="gain of a step on unseen prompts, in half-widths of its interval; unknown with `large_step`",
        measure=_gain,
    ),
    "signal": Feature(meaning="decimal logarithm of the squared signal to noise of a step", measure=_signal),
    "differing": Feature(
        meaning="fraction of prompts with responses that differ in score",
        measure=lambda report: _lowest(report["scores"][name]["differing"]["value"] for name in _agent_names(report)),
    ),
    "repeatable": Feature(
        meaning="fraction of the variance within prompts that the reward repeats",
        measure=lambda report: _lowest(report["repeatable"][name]["value"] for name in _agent_names(report)),
    ),
    "bonus": Feature(
        meaning="decimal logarithm of the entropy bonus's gradient by that of the scores, plus .01",
        measure=lambda report: math.log10(0.01 + _highest(policy["bonus"] for policy in _policies(report))),
    ),
}
"""Of several policies the highest value counts, of several agents the lowest.

Not the entropy: more of the fitted runs with a long warm start, which lowers it, are broken on purpose.
"""


@dataclass(frozen=True, slots=True)
class Table:
    """The fitted weights: the logit of an outcome is `intercept + sum(weight * (value - mean))`."""

    runs: int
    findings: frozenset[str]  # names of the findings that several fitted pilots had
    means: Mapping[str, float]  # by feature
    limits: Mapping[str, tuple[float, float]]  # of almost all fitted values; values beyond count as the limit
    intercepts: Mapping[str, float]  # by outcome
    weights: Mapping[str, Mapping[str, float]]  # by outcome and feature


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Probabilities by outcome; empty if no fitted run is like this one, for a reason."""

    probabilities: Mapping[str, float]
    runs: int
    reason: str = ""

    @property
    def line(self) -> str:
        """The forecast in a line."""
        if not self.probabilities:
            return f"forecast: no probability ({self.reason})"
        ordered = sorted(self.probabilities.items(), key=lambda entry: -entry[1])
        parts = ", ".join(f"{WORDS[name]} {value:.2f}".replace(" 0.", " .") for name, value in ordered)
        return f"forecast: {parts} (fitted on {self.runs} short runs of tiny models)"


@cache
def read_table() -> Table:
    """The table of this version."""
    stored: dict[str, Any] = json.loads(TABLE.read_text())
    rows = stored["features"]
    return Table(
        runs=stored["runs"],
        findings=frozenset(stored["findings"]),
        means={name: row["mean"] for name, row in rows.items()},
        limits={name: (row["low"], row["high"]) for name, row in rows.items()},
        intercepts=stored["intercepts"],
        weights={outcome: {name: row["weights"][outcome] for name, row in rows.items()} for outcome in WORDS},
    )


def forecast_outcomes(report: Report, table: Table | None = None) -> Outlook:
    """The probability of each outcome of the run that a pilot has measured; see `to_json_data` for `report`.

    Without one if the pilot shows that no agent can learn, or has a finding that the fitted pilots did not have.
    """
    table = table or read_table()
    unknown = [finding["name"] for finding in report["findings"] if finding["name"] not in table.findings]
    if report["verdict"] == "no signal" or "policies" not in report:
        return Outlook(probabilities={}, runs=table.runs, reason="no agent can learn")
    if unknown:
        return Outlook(probabilities={}, runs=table.runs, reason=f"too few fitted runs had the finding {unknown[0]}")
    return Outlook(probabilities=apply_table(measure_features(report), table), runs=table.runs)


def measure_features(report: Report) -> dict[str, float]:
    """The features of a report; NaN where one is unknown."""
    return {name: feature.measure(report) for name, feature in FEATURES.items()}


def apply_table(values: Mapping[str, float], table: Table) -> dict[str, float]:
    """Probabilities from features; one that is unknown counts as the mean of the fitted pilots."""
    moved = {}
    for name, mean in table.means.items():
        low, high = table.limits[name]
        value = values[name]
        moved[name] = 0.0 if math.isnan(value) else min(max(value, low), high) - mean
    logits = {
        outcome: intercept + sum(table.weights[outcome][name] * value for name, value in moved.items())
        for outcome, intercept in table.intercepts.items()
    }
    highest = max(logits.values())
    parts = {outcome: math.exp(logit - highest) for outcome, logit in logits.items()}
    return {outcome: part / sum(parts.values()) for outcome, part in parts.items()}
