"""The verdict of a pilot: its own findings, and those of the doctor that a single iteration shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ippo_cli.config.text import format_count
from ippo_cli.diagnosis.diagnose import diagnose
from ippo_cli.diagnosis.finding import Certainty, Finding, Observations
from ippo_cli.diagnosis.registry import BY_NAME
from ippo_cli.diagnosis.series import metric_value, trained_agents
from ippo_cli.pilot import policy_findings, score_findings
from ippo_cli.pilot.findings import Check, NamedFinding, Verdict
from ippo_cli.pilot.measure import Measurement, PolicyMeasurement

MORE_TOKENS = 4  # times the tokens of a pilot that shows nothing, for another one
SHARED_CONDITIONS = (
    *("failing_rewards", "non_finite_scores", "stop_token", "chat_template", "sampler_mismatch", "masked_tokens"),
    *("silent", "truncated", "overflow", "deaf_agents", "skipped_steps"),
)

CHECKS: Sequence[Check] = (
    score_findings.find_equal_prompts,
    score_findings.find_unparsed,
    score_findings.find_hidden_by_length,
    policy_findings.find_no_update,
    score_findings.find_equal_scores,
    score_findings.find_removed_signal,
    policy_findings.find_no_gradient,
    policy_findings.find_step_size,
    policy_findings.find_strong_kl,
    policy_findings.find_strong_bonus,
    score_findings.find_random_scores,
    score_findings.find_few_differing,
    score_findings.find_rare_scores,
    policy_findings.find_noise,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The findings of a pilot, the gravest first, and the verdict on the run."""

    findings: Sequence[NamedFinding]
    verdict: Verdict
    reason: str  # of the verdict, one clause


GRAVITY = (Verdict.no_signal, Verdict.too_large_steps, Verdict.slow, Verdict.learns)


def assess(measurement: Measurement, observations: Observations) -> Assessment:
    """All findings, and the verdict: the gravest of the findings, or what the sample shows of the signal."""
    found = [
        NamedFinding(name, finding, _shared_verdict(name, finding, observations))
        for name, finding in diagnose(observations, [BY_NAME[name] for name in SHARED_CONDITIONS]).findings.items()
    ]
    covered = {agent for one in found if one.verdict is Verdict.no_signal for agent in one.finding.agents}
    for check in CHECKS:
        for one in check(measurement, observations):
            if not covered.issuperset(one.finding.agents) or one.verdict is Verdict.too_large_steps:
                found.append(one)
                covered |= set(one.finding.agents) if one.verdict is Verdict.no_signal else set()
    found.sort(key=lambda one: GRAVITY.index(one.verdict))
    verdict, reason = _judge(measurement, found, trained_agents(observations.config))
    return Assessment(findings=found, verdict=verdict, reason=reason)


def _shared_verdict(name: str, finding: Finding, observations: Observations) -> Verdict:
    if name in ("non_finite_scores", "masked_tokens", "silent"):
        return Verdict.no_signal
    if name == "failing_rewards":
        shares = [metric_value(observations.rows[-1], f"{agent}/score/failed_fraction") for agent in finding.agents]
        return Verdict.no_signal if min(shares) > observations.config.reward.failure_budget else Verdict.slow
    return Verdict.slow


def _judge(measurement: Measurement, found: Sequence[NamedFinding], trained: Sequence[str]) -> tuple[Verdict, str]:
    """The verdict and its reason. A policy without a signal does not stop the others."""
    hopeless = {agent for one in found if one.verdict is Verdict.no_signal for agent in one.finding.agents}
    if hopeless.issuperset(trained):
        return Verdict.no_signal, "no agent can learn"
    if any(one.verdict is Verdict.too_large_steps for one in found):
        return Verdict.too_large_steps, "single steps change a policy by too much"
    if found:
        return Verdict.slow, "see above"
    tests = 2 * len(measurement.policies)
    evidence = [name for policy in measurement.policies if (name := _find_evidence(policy, tests)) is not None]
    if evidence:
        return Verdict.learns, evidence[0]
    count = format_count(measurement.episodes, "response")
    more = MORE_TOKENS * measurement.size.tokens
    return Verdict.slow, f"no direction of improvement is visible in {count}; pilot.tokens={more} shows more"


def _find_evidence(policy: PolicyMeasurement, tests: int) -> str | None:
    """How the sample shows that a policy improves beyond chance; None if it does not. `tests`: of all policies."""
    if policy.step is not None and policy.step.gain.exceeds_zero(tests):
        return f"a step of {policy.name} raises the expected score on prompts that it has not seen"
    if policy.gradient is not None and policy.gradient.whole.squared_ratio.exceeds_zero(tests):
        return f"gradients of {policy.name} on different prompts agree"
    return None


def failed_assessment(error: str, remedy: str, agents: Sequence[str]) -> Assessment:
    """The assessment of a pilot that an error of the reward, or of an update, has ended."""
    finding = Finding(agents=tuple(agents), text=error, advice=remedy, certainty=Certainty.certain)
    return Assessment(
        findings=[NamedFinding("failure", finding, Verdict.no_signal)],
        verdict=Verdict.no_signal,
        reason="the run would end with this error",
    )
