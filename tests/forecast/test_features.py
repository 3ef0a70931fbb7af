"""Features of the forecast on series with known values."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from ippo_cli.forecast.features import FEATURES, MIN_ROWS, WINDOW, measure_features

Row = dict[str, float | None]


def rows(change: Callable[[int], Row], count: int = 24, agent: str = "solo") -> list[Row]:
    """Rows with these metrics of an agent; iterations count from 1."""
    return [
        {"iteration": n} | {f"{agent}/{key}": value for key, value in change(n).items()} for n in range(1, count + 1)
    ]


def value(name: str, change: Callable[[int], Row], count: int = 24) -> float:
    return measure_features(rows(change, count))[name].number


def test_slopes_of_the_entropy() -> None:
    halving = lambda n: {"policy/entropy": 8 * 0.5**n}  # noqa: E731
    assert value("entropy_fall", halving, 9) == pytest.approx(math.log(2.0))
    falling = lambda n: {"policy/entropy": 3.0 - 0.1 * n}  # noqa: E731
    assert value("entropy_jump", falling) == pytest.approx(math.log10(0.1))
    recent = sum(3.0 - 0.1 * n for n in range(17, 25)) / 8
    assert value("low_entropy", falling) == pytest.approx(-math.log10(recent))
    last = sum(3.0 - 0.1 * n for n in range(21, 25)) / 4
    assert value("entropy_lost", falling) == pytest.approx(math.log(2.9 / last))
    assert value("entropy_regained", falling) == pytest.approx(math.log(last / 0.6))


def test_levels_of_updates() -> None:
    assert value("update_kl", lambda _: {"policy/approx_kl": 0.01}) == pytest.approx(-2.0)
    assert value("update_kl", lambda _: {"policy/approx_kl": 0.0}) == -5.0
    assert value("clipped", lambda n: {"policy/clip_fraction": 0.3 if n > 16 else 0.9}) == pytest.approx(0.3)
    assert value("ratio_tail", lambda _: {"policy/ratio_max_deviation": 10.0}) == pytest.approx(1.0)
    assert value("ties", lambda _: {"targets/zero_advantage_fraction": 0.25}) == pytest.approx(0.25)
    assert value("unexplained_variance", lambda _: {"value/explained_variance": 0.4}) == pytest.approx(0.6)
    losing = value("explained_variance_fall", lambda n: {"value/explained_variance": 0.9 - 0.01 * n})
    assert losing == pytest.approx(0.01)


@pytest.mark.parametrize("part", ["policy", "joint"])
def test_gradient_norms_relative_to_their_median(part: str) -> None:
    grown = value("gradient_growth", lambda n: {f"{part}/grad_norm": 8.0 if n > 20 else 2.0})
    assert grown == pytest.approx(math.log(4.0))


def test_spikes_per_optimizer_step() -> None:
    spiking = lambda n: {"policy/grad_norm_spikes": float(n > 22), "policy/steps": 4.0}  # noqa: E731
    assert value("gradient_spikes", spiking) == pytest.approx(2 / 32)


def test_scores_in_standard_deviations() -> None:
    falling = lambda n: {"score/mean": 0.8 if n <= 12 else 0.6, "score/std": 0.4}  # noqa: E731
    assert value("score_fall", falling) == pytest.approx(0.5)
    assert value("score_gain", falling) == pytest.approx(-0.5)
    steady = lambda n: {"score/mean": 0.9 - 0.02 * n, "score/std": 0.4}  # noqa: E731
    assert value("score_decline", steady) == pytest.approx(0.05)
    collapsed = lambda n: {"score/mean": 0.1, "score/std": 0.4 if n < 20 else 0.1}  # noqa: E731
    assert value("score_spread_lost", collapsed) == pytest.approx(math.log(4.0))


def test_lengths_relative_to_the_first_ones() -> None:
    growing = lambda n: {"rollout/response_length": 4.0 if n <= 4 else 8.0}  # noqa: E731
    assert value("longer", growing) == pytest.approx(math.log(2.0))


def test_worst_owner_counts() -> None:
    calm = rows(lambda _: {"policy/entropy": 2.0}, agent="calm")
    failing = rows(lambda n: {"policy/entropy": 3.0 - 0.1 * n}, agent="failing")
    both = [one | other for one, other in zip(calm, failing, strict=True)]
    assert measure_features(both)["entropy_fall"].owner == "failing"
    assert measure_features(both)["entropy_regained"].owner == "failing", "ends above its lowest value"


def test_missing_values_are_left_out() -> None:
    """null of the file, NaN and infinity of the running process, and metrics that only some iterations have."""
    for missing in (None, math.nan, math.inf):
        gaps = lambda n, missing=missing: {"policy/approx_kl": missing if n % 2 else 0.1}  # noqa: E731
        assert value("update_kl", gaps) == pytest.approx(-1.0)
    assert "update_kl" not in measure_features(rows(lambda _: {"policy/approx_kl": None}))
    assert "score_fall" not in measure_features(rows(lambda _: {"score/mean": 0.5}))
    assert measure_features(rows(lambda _: {"score/mean": 0.5, "score/std": 0.0})).keys().isdisjoint({"score_fall"})


def test_number_of_rows() -> None:
    """A forecast needs `MIN_ROWS` training iterations, and reads the last `WINDOW` of them."""
    constant = rows(lambda _: {"policy/approx_kl": 0.01}, MIN_ROWS)
    assert measure_features(constant[1:]) == {}
    assert measure_features([{"iteration": 0}, *constant[1:]]) == {}, "row 0 is an evaluation"
    assert measure_features(constant)
    change = lambda n: {"policy/entropy": 2.0 if n > 10 else 9.0}  # noqa: E731
    assert measure_features(rows(change, WINDOW + 9))["entropy_lost"].number > 0
    assert measure_features(rows(change, WINDOW + 10))["entropy_lost"].number == 0


def test_values_are_limited() -> None:
    extreme = measure_features(
        rows(lambda n: {"policy/entropy": 10.0**n, "policy/approx_kl": 1e9, "score/mean": -(10.0**n), "score/std": 1.0})
    )
    for feature in FEATURES:
        if feature.name in extreme:
            assert feature.low <= extreme[feature.name].number <= feature.high
    assert extreme["update_kl"].number == 1.0


def test_other_metrics_do_not_count() -> None:
    """Evaluations, times, learning rates and metrics of single turns change no feature."""
    known = rows(lambda n: {"policy/entropy": 3.0 - 0.1 * n, "score/mean": 0.1, "score/std": 0.2})
    more = [
        row | {"eval/sampled/score": 9.0, "time/iteration": 1.0, "solo/policy/learning_rate": 1.0}
        | {"solo/policy/entropy/turn/1": 0.0}
        for row in known
    ]  # fmt: skip
    assert measure_features(more) == measure_features(known)
