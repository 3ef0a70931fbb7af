"""Condition of KL terms: a coefficient that does not hold the policy near its reference, or that allows no gain."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ippo_cli.config.text import join_names
from ippo_cli.diagnosis.finding import (
    Evidence,
    Finding,
    NotChecked,
    Observations,
    Outcome,
    Row,
    format_value,
    metric_evidence,
)
from ippo_cli.diagnosis.series import MIN_ROWS, column_mean, has_gained, last_rows, measure_change, trained_agents

DRIFT_NATS = 1.0  # rise of the reference's surprise per token
DRIFT_FACTOR = 0.5  # minimum rise relative to its first value
DOMINANT_STRENGTH = 10.0  # KL coefficient in standard deviations of the score: a gain of a tenth of one


def find_kl_coefficient(observations: Observations) -> Outcome:
    """The KL term is too weak to hold the policy near its reference, or so strong that nothing is learned."""
    rows = observations.rows
    names = [name for name in trained_agents(observations.config) if any(f"{name}/kl/reference" in row for row in rows)]
    if not names:
        return NotChecked(
            "no KL term, so the distance to the reference is not measured; algorithm.kl.reward.coef=0.001 measures it"
        )
    if len(rows) < MIN_ROWS:
        return NotChecked(f"needs {MIN_ROWS} iterations")
    weak = [name for name in names if _has_drifted(observations, name)]
    if weak:
        return _weak_kl(observations, weak)
    strong = [name for name in names if _is_dominated_by_kl(observations, name)]
    return describe_strong_kl(observations, strong, ", and the score does not rise") if strong else None


def _reference_surprise(rows: Sequence[Row], name: str) -> list[float]:
    """Mean negative log-probability of the sampled tokens under the reference, nats per token, by iteration."""
    kl, logprob = f"{name}/kl/reference", f"{name}/rollout/logprob"
    found = [row.get(kl, math.nan) - row.get(logprob, math.nan) for row in rows]
    return [value for value in found if not math.isnan(value)]


def _has_drifted(observations: Observations, name: str) -> bool:
    """Whether the reference finds the responses much less likely than those of the first iterations.

    A policy that only prefers the reference's best responses has a growing KL, but its responses stay likely.
    """
    change = measure_change(_reference_surprise(observations.rows, name))
    if change is None or not change.has_risen:
        return False
    return change.gain > max(DRIFT_NATS, DRIFT_FACTOR * change.first)


def _weak_kl(observations: Observations, names: Sequence[str]) -> Finding:
    rows, kl = observations.rows, observations.config.algorithm.kl
    term = "loss" if kl.loss.coef else "reward"
    coef = getattr(kl, term).coef
    surprise = _reference_surprise(rows, names[0])
    return Finding(
        agents=tuple(names),
        text=f"the policy of {join_names(names)} drifts away from its reference, which finds its responses unlikely: "
        f"algorithm.kl.{term}.coef={coef:g} is too low to prevent it",
        advice="raise the coefficient, or let it adapt",
        evidence=(
            metric_evidence(rows, f"{names[0]}/kl/reference"),
            Evidence(
                "surprise of the reference, nats per token",
                f"{format_value(surprise[0])} -> {format_value(surprise[-1])}",
                (int(rows[0]["iteration"]), int(rows[-1]["iteration"])),
            ),
        ),
        overrides=(
            f"algorithm.kl.{term}.coef={max(100 * coef, 0.01):g}",
            *(
                ("algorithm.kl.reward.target=0.1 algorithm.kl.reward.horizon=10000",)
                if term == "reward" and kl.reward.target is None
                else ()
            ),
        ),
    )


def kl_strength(observations: Observations, name: str) -> float:
    """The coefficient of the KL term in standard deviations of the trained score.

    The optimal policy under the coefficient b is proportional to p_ref exp(score / b) (arXiv 2305.18290, equation 4).
    For large b its mean score exceeds that of the reference by var(score) / b: 1 / strength standard deviations.
    With advantages that are divided by a standard deviation, the coefficient of a loss term is in such units already.
    """
    rows, config = last_rows(observations.rows), observations.config
    spread = column_mean(rows, f"{name}/score/processed/std")
    if math.isnan(spread):
        spread = column_mean(rows, f"{name}/score/std")
    in_reward = column_mean(rows, f"{name}/kl/reward_coef") / spread if spread > 0 else 0.0
    in_loss = config.algorithm.kl.loss.coef
    if not (config.algorithm.advantage_normalization or config.algorithm.scale_by_std):
        in_loss = in_loss / spread if spread > 0 else 0.0
    return max(in_reward if not math.isnan(in_reward) else 0.0, in_loss)


def _is_dominated_by_kl(observations: Observations, name: str) -> bool:
    """Whether the KL term allows almost no gain, and the score does not rise."""
    return kl_strength(observations, name) > DOMINANT_STRENGTH and not has_gained(observations, name)


def describe_strong_kl(observations: Observations, names: Sequence[str], outcome: str = "") -> Finding:
    """The finding of a KL term that allows almost no gain; `outcome`: what else the run shows."""
    rows, kl = observations.rows, observations.config.algorithm.kl
    term, coef = ("reward", kl.reward.coef) if kl.reward.coef else ("loss", kl.loss.coef)
    strength = kl_strength(observations, names[0])
    return Finding(
        agents=tuple(names),
        text=f"algorithm.kl.{term}.coef={coef:g} is too high for the scores of {join_names(names)}: it allows a gain "
        f"of about {format_value(1 / strength)} standard deviations{outcome}",
        advice="lower it, to about the standard deviation of the scores or less",
        evidence=(
            metric_evidence(rows, f"{names[0]}/score/std"),
            metric_evidence(rows, f"{names[0]}/kl/reference"),
            metric_evidence(rows, f"{names[0]}/score/mean"),
        ),
        overrides=(f"algorithm.kl.{term}.coef={format_value(coef / strength / 10)}",),
    )
