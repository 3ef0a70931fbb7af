"""The step of a pilot by hand: rates for a KL, gains of scores, and sizes within a bound of tokens."""

from __future__ import annotations

import math

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config.batch_sizes import compute_batch_sizes
from ippo_cli.config.errors import ConfigError
from ippo_cli.pilot.change import RowChange, StepChange, estimate_gain
from ippo_cli.pilot.size import MIN_PROMPTS, check_pilot_tokens, compute_pilot_size
from ippo_cli.pilot.statistics import UNKNOWN, Estimate
from ippo_cli.pilot.step import estimate_scale


def change(scale: float, kl: float) -> StepChange:
    return StepChange(scale=scale, kl=Estimate(kl), largest_logratio=0.0, clip_fraction=0.0)


def row(prompt: int, score: float, logratio: float) -> RowChange:
    return RowChange(
        prompt=prompt, index=0, kl=0.0, tokens=1, clipped=0, logratio=logratio, score=score, is_unseen=True
    )


def test_rate_of_a_quadratic_kl() -> None:
    assert estimate_scale([change(1.0, 0.01), change(2.0, 0.04)], 0.09) == pytest.approx(3.0)


def test_rate_follows_the_measured_exponent() -> None:
    assert estimate_scale([change(1.0, 0.01), change(2.0, 0.02)], 0.04) == pytest.approx(4.0)


def test_rate_of_one_measurement_is_quadratic() -> None:
    assert estimate_scale([change(1.0, 0.01)], 0.04) == pytest.approx(2.0)


def test_rate_is_unknown_without_a_change() -> None:
    assert math.isnan(estimate_scale([change(1.0, 0.0)], 0.04))


def test_gain_compares_responses_of_one_prompt() -> None:
    """Each better response becomes e^0.1 times as likely: (1 - 0) 0.1 and (0 - 1) (-0.1), in both prompts."""
    rows = [row(0, 1.0, 0.1), row(0, 0.0, -0.1), row(1, 3.0, 0.1), row(1, 2.0, -0.1)]
    found = estimate_gain(rows)
    assert found.value == pytest.approx(0.1)
    assert found.low == pytest.approx(0.1)


def test_gain_of_single_responses_compares_prompts() -> None:
    assert estimate_gain([row(0, 1.0, 0.2), row(1, 0.0, 0.0)]).value == pytest.approx(0.1)


def test_gain_leaves_out_rows_without_a_score() -> None:
    assert estimate_gain([row(0, 1.0, 0.2), row(1, math.nan, 5.0)]) == UNKNOWN


@pytest.mark.parametrize("generations", [1, 4])
def test_size_is_within_the_tokens(generations: int) -> None:
    config = load_config(["mode=pilot", f"rollout.num_generations={generations}", "pilot.tokens=2000"])
    size = compute_pilot_size(config, compute_batch_sizes(config, 1, 1), 1)
    assert size.prompts > MIN_PROMPTS
    assert size.tokens <= 2000 < size.tokens + 2 * max(generations, 4) * size.episode_tokens


def test_default_size_is_a_hundredth_of_a_long_run() -> None:
    config = load_config(["mode=pilot", "num_iterations=2000"])
    sizes = compute_batch_sizes(config, 1, 1)
    size = compute_pilot_size(config, sizes, 1)
    assert size.prompts == sizes.prompts_per_iteration
    assert size.tokens <= 0.01 * size.run_tokens


def test_short_run_has_the_least_size() -> None:
    config = load_config(["mode=pilot", "num_iterations=1"])
    assert compute_pilot_size(config, compute_batch_sizes(config, 1, 1), 1).prompts == MIN_PROMPTS


def test_too_few_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"pilot\.tokens=10 is less .*; use pilot\.tokens=\d+ or more"):
        check_pilot_tokens(load_config(["mode=pilot", "pilot.tokens=10"]), 1)
