"""Applies all conditions to a run: findings without their consequences, and what was or could not be checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ippo_cli.config.schema import Mode
from ippo_cli.diagnosis.finding import Condition, Finding, NotChecked, Observations, Outcome
from ippo_cli.diagnosis.registry import BY_NAME, CONDITIONS


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings by name of their condition, in the order of the report.

    `consequences`: for each finding, other conditions that hold and that it explains.
    """

    findings: dict[str, Finding]
    consequences: dict[str, tuple[str, ...]]
    checked: tuple[str, ...]
    unchecked: dict[str, str]  # why a condition was not checked


def diagnose(observations: Observations, conditions: Sequence[Condition] = CONDITIONS) -> Diagnosis:
    """Apply the conditions; without a training iteration none is checked."""
    if not observations.rows:
        return Diagnosis({}, {}, (), dict.fromkeys(BY_NAME, "the run has no training iteration"))
    outcomes = {condition.name: _check(condition, observations) for condition in conditions}
    unchecked = {name: outcome.reason for name, outcome in outcomes.items() if isinstance(outcome, NotChecked)}
    found = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Finding)}
    causes = _find_causes(found)
    return Diagnosis(
        findings={name: finding for name, finding in found.items() if name in causes},
        consequences={name: consequences for name, consequences in causes.items() if consequences},
        checked=tuple(name for name in outcomes if name not in unchecked),
        unchecked=unchecked,
    )


def _check(condition: Condition, observations: Observations) -> Outcome:
    if condition.needs_policy_updates and observations.config.mode is Mode.critic:
        return NotChecked("mode=critic does not update policies")
    return condition.find(observations)


def _find_causes(found: Mapping[str, Finding]) -> dict[str, tuple[str, ...]]:
    """Findings that no other one explains, with those that each explains. A condition explains only later ones."""
    causes: dict[str, tuple[str, ...]] = {}
    explained: set[str] = set()
    for name in found:
        consequences = BY_NAME[name].explains
        if name not in explained:
            causes[name] = tuple(other for other in consequences if other in found and other not in explained)
        explained |= set(consequences)
    return causes
