"""Findings and verdicts of pilots, from measurements that are written by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.diagnosis.finding import Observations
from ippo_cli.pilot.change import StepChange
from ippo_cli.pilot.findings import Verdict
from ippo_cli.pilot.gradient import PolicyGradient
from ippo_cli.pilot.measure import Measurement, PolicyMeasurement
from ippo_cli.pilot.report import format_report, to_json_data
from ippo_cli.pilot.size import PilotSize
from ippo_cli.pilot.statistics import Estimate, GradientSignal, ScoreSpread, measure_spread
from ippo_cli.pilot.step import PolicyStep
from ippo_cli.pilot.verdict import Assessment, assess, failed_assessment

DIFFERING = [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
SIZE = PilotSize(prompts=8, generations=2, repeats=0, repeated_prompts=0, episode_tokens=4, run_tokens=6400)
ROW = {"iteration": 1.0, "solo/score/mean": 0.5, "solo/score/std": 0.5, "solo/policy/steps": 1.0}


def spread(groups: Sequence[Sequence[float]] = DIFFERING) -> ScoreSpread:
    return measure_spread(groups)


def signal(low: float = 0.1, high: float = 0.3, norm: float = 1.0) -> GradientSignal:
    return GradientSignal(norm=norm, cosine=0.5, squared_ratio=Estimate((low + high) / 2, low, high))


def policy(
    kl: float = 0.01,
    gradient: GradientSignal | None = None,
    steps: int = 400,
    rate: float = 3.5e-4,
    bonus: float = 0.0,
) -> PolicyMeasurement:
    own = gradient or signal()
    change = StepChange(scale=1.0, kl=Estimate(kl, kl / 2, 2 * kl), largest_logratio=0.1, clip_fraction=0.0)
    return PolicyMeasurement(
        name="solo",
        agents=("solo",),
        steps=steps,
        gradient=PolicyGradient(whole=own, by_agent={"solo": own}),
        bonus=bonus,
        step=PolicyStep(
            learning_rate=rate,
            changes=[change],
            rate_at_limit=rate * math.sqrt(0.02 / kl) if kl else math.nan,
            gain=Estimate(0.1, -1, 1),
            stats={"solo/policy/grad_norm": own.norm},
        ),
    )


HEALTHY = Measurement(
    size=SIZE,
    episodes=16,
    tokens=60,
    spreads={"solo": spread()},
    repeatable={"solo": Estimate(1.0, 1.0, 1.0)},
    equal_prompts=[],
    policies=[policy()],
    critics={},
    row=ROW,
    samples=[],
    seconds={"rollout": 1.0, "score": 0.1},
    iterations=400,
)


def assess_pilot(measurement: Measurement, *overrides: str, **row: float) -> Assessment:
    config = load_config(["mode=pilot", "task=sorting_solo", *overrides])
    names = {f"solo/{key.replace('__', '/')}": value for key, value in row.items()}
    measurement = replace(measurement, row={**measurement.row, **names})
    return assess(measurement, Observations(config=config, rows=[measurement.row]))


def names(found: Assessment) -> list[str]:
    return [one.name for one in found.findings]


def with_scores(groups: Sequence[Sequence[float]]) -> Measurement:
    return replace(HEALTHY, spreads={"solo": spread(groups)})


def with_policy(**changes: Any) -> Measurement:
    return replace(HEALTHY, policies=[policy(**changes)])


def with_repeatable(value: float, low: float) -> Measurement:
    return replace(HEALTHY, repeatable={"solo": Estimate(value, low, 2 * value - low)})


def test_agreeing_gradients_learn() -> None:
    found = assess_pilot(HEALTHY)
    assert (names(found), found.verdict) == ([], Verdict.learns)


def test_no_visible_direction_is_slow() -> None:
    found = assess_pilot(with_policy(gradient=signal(low=-0.1, high=0.3)))
    assert (names(found), found.verdict) == ([], Verdict.slow)


@pytest.mark.parametrize(
    ("measurement", "overrides", "row", "name", "verdict"),
    [
        (with_scores([[0.0, 0.0], [0.0, 0.0]]), (), {}, "equal_scores", Verdict.no_signal),
        (with_scores([[0.0, 0.0], [1.0, 1.0]]), (), {}, "scores_by_prompt", Verdict.no_signal),
        (with_scores([[0.0, 1.0], *[[0.0, 0.0]] * 99]), (), {}, "few_differing", Verdict.slow),
        (with_scores([[0.0] * 63 + [1.0]] * 10), (), {}, "rare_scores", Verdict.slow),
        (with_repeatable(0.05, -0.2), (), {}, "random_scores", Verdict.slow),
        (with_repeatable(0.3, 0.2), (), {}, "random_scores", Verdict.slow),
        (replace(HEALTHY, equal_prompts=["solo"]), (), {}, "equal_prompts", Verdict.slow),
        (with_policy(bonus=2.0), ("algorithm.entropy_coef=1",), {}, "entropy_coefficient", Verdict.slow),
        (HEALTHY, (), {"targets__zero_advantage_fraction": 1.0}, "removed_signal", Verdict.no_signal),
        (HEALTHY, ("actor.learning_rate=0",), {}, "no_update", Verdict.no_signal),
        (with_policy(steps=0), ("algorithm.critic_warmup=400",), {}, "no_update", Verdict.no_signal),
        (with_policy(gradient=signal(0, 0, norm=0.0)), (), {}, "no_gradient", Verdict.no_signal),
        (with_policy(kl=2.0), (), {}, "large_step", Verdict.too_large_steps),
        (with_policy(kl=1e-10), (), {}, "small_step", Verdict.slow),
        (with_policy(kl=0.0), (), {}, "small_step", Verdict.slow),
        (with_policy(gradient=signal(low=-1e-4, high=1e-4)), (), {}, "noise", Verdict.slow),
        (HEALTHY, ("algorithm.kl.reward.coef=50",), {"kl__reward_coef": 50.0}, "kl_coefficient", Verdict.slow),
        (HEALTHY, ("algorithm=grpo", "algorithm.kl.loss.coef=11"), {}, "kl_coefficient", Verdict.slow),
        (HEALTHY, ("algorithm=dr_grpo", "algorithm.kl.loss.coef=6"), {}, "kl_coefficient", Verdict.slow),
        (HEALTHY, (), {"score__part__found": 0.0}, "unparsed", Verdict.slow),
        (HEALTHY, (), {"score__part__strict": 0.0, "score__part__flexible": 0.2}, "unparsed", Verdict.slow),
        (HEALTHY, (), {"score__failed_fraction": 1.0}, "failing_rewards", Verdict.no_signal),
        (HEALTHY, (), {"score__mean": math.nan}, "non_finite_scores", Verdict.no_signal),
    ],
)
def test_finding_and_verdict(
    measurement: Measurement, overrides: Sequence[str], row: Mapping[str, float], name: str, verdict: Verdict
) -> None:
    found = assess_pilot(measurement, *overrides, **row)
    assert (names(found), found.verdict) == ([name], verdict)


def test_reward_that_mostly_repeats_is_no_finding() -> None:
    assert names(assess_pilot(with_repeatable(0.6, 0.3))) == []
    assert names(assess_pilot(with_policy(bonus=0.5), "algorithm.entropy_coef=1")) == []


def test_coefficient_of_the_loss_is_in_units_of_the_advantages() -> None:
    """GRPO divides by the group's standard deviation, Dr. GRPO does not: scores deviate by 0.5."""
    assert names(assess_pilot(HEALTHY, "algorithm=grpo", "algorithm.kl.loss.coef=9")) == []
    assert names(assess_pilot(HEALTHY, "algorithm=dr_grpo", "algorithm.kl.loss.coef=4")) == []


def test_truncation_explains_scores_that_do_not_differ() -> None:
    """Below 99 % of truncated responses, and only then: scores that differ are no consequence of it."""
    cut = {"rollout__truncated_fraction": 0.95}
    assert names(assess_pilot(with_scores([[0.0, 0.0], [0.0, 0.0]]), **cut)) == ["equal_scores", "truncated"]
    assert names(assess_pilot(HEALTHY, **cut)) == []


def test_rates_to_try_have_the_wanted_step() -> None:
    """KL grows with the square of the rate: 2 at 3.5e-4 is 0.02 at a tenth of it, rounded down."""
    (found,) = assess_pilot(with_policy(kl=2.0)).findings
    assert found.finding.overrides == ("actor.learning_rate=3e-05",)


def test_first_finding_is_the_gravest() -> None:
    measurement = replace(with_policy(kl=2.0), spreads={"solo": spread([[0.0, 0.0], [1.0, 1.0]])})
    found = assess_pilot(measurement)
    assert names(found) == ["scores_by_prompt", "large_step"]
    assert found.verdict is Verdict.no_signal


def test_report_has_each_finding_with_its_key() -> None:
    found = assess_pilot(with_policy(kl=2.0))
    text = format_report(with_policy(kl=2.0), found)
    assert "actor.learning_rate=3e-05" in text
    assert text.splitlines()[-2].startswith("verdict: too large steps")
    assert text.splitlines()[-1].startswith("forecast: collapses .")


def test_json_has_no_infinity() -> None:
    measurement = replace(HEALTHY, critics={}, spreads={"solo": spread([])})
    data = to_json_data(measurement, assess_pilot(measurement))
    assert json.loads(json.dumps(data, allow_nan=False))["scores"]["solo"]["mean"]["value"] is None


def test_error_is_a_finding() -> None:
    found = failed_assessment("the reward fails: no route", "correct the reward", ["solo"])
    assert found.verdict is Verdict.no_signal
    assert to_json_data(None, found)["findings"][0]["finding"] == "the reward fails: no route"
