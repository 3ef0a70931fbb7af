"""The space of a search: parsing of intervals and lists, sampling, and steps of values."""

from __future__ import annotations

import random

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.sweeps.space import Dimension, parse_space


def no_options(group: str) -> list[str]:
    return {"algorithm": ["ippo", "ppo"]}.get(group, [])


def dimension(text: str) -> Dimension:
    [found], _ = parse_space({"k": text}, [], no_options)
    return found


def test_parse_dimension() -> None:
    assert dimension("interval(0, 1)") == Dimension(key="k", low=0.0, high=1.0)
    assert dimension("tag(log, interval(1e-5, 1e-3))") == Dimension(key="k", low=1e-5, high=1e-3, log=True)
    assert dimension("int(interval(1, 8))") == Dimension(key="k", low=1, high=8, integer=True)
    assert dimension("choice(a, b)") == dimension("a,b") == Dimension(key="k", choices=("a", "b"))
    assert dimension("range(1, 4)").choices == ("1", "2", "3")


def test_typed_overrides_take_precedence() -> None:
    found, fixed = parse_space(
        {"a": "interval(0,1)", "b": "interval(0,1)"}, ["a=1,2", "b=3", "c=4", "algorithm=glob(*)"], no_options
    )
    assert found == [Dimension(key="a", choices=("1", "2")), Dimension(key="algorithm", choices=("ippo", "ppo"))]
    assert fixed == ["b=3", "c=4"]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("interval(1, 1)", "is an empty interval"),
        ("tag(log, interval(0, 1))", "needs a lower end above 0 for tag(log)"),
        ("3", "has only one value"),
        ("interval(1", "is not an interval or list of values"),
    ],
)
def test_invalid_dimension_rejected(text: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=r"^sweep\.space\.k=.*") as raised:
        dimension(text)
    assert rule in str(raised.value)


def test_samples_and_steps_within_interval() -> None:
    rate = dimension("tag(log, interval(1e-5, 1e-3))")
    drawn = [float(rate.sample(random.Random(seed))) for seed in range(200)]
    assert all(1e-5 <= number <= 1e-3 for number in drawn)
    assert 60 < sum(number < 1e-4 for number in drawn) < 140  # equally likely in both decades
    assert rate.step_value("0.0001", 1.2) == "0.00012"
    assert rate.step_value("0.0001", 0.8) == "8e-05"
    assert rate.step_value("0.0009", 1.2) == rate.step_value("0.001", 1.2) == "0.001"


def test_integers_and_lists_change_by_at_least_one_step() -> None:
    epochs = dimension("int(interval(1, 8))")
    assert [epochs.step_value("2", factor) for factor in (0.8, 1.2)] == ["1", "3"]
    assert epochs.step_value("8", 1.2) == "8"
    batch = dimension("choice(16, 32, 64)")
    assert [batch.step_value("32", factor) for factor in (0.8, 1.2)] == ["16", "64"]
    assert batch.step_value("64", 1.2) == "64"


def test_log_integers_sampled_log_uniformly() -> None:
    by_logarithm, source = dimension("tag(log, int(interval(1, 1000)))"), random.Random(0)
    drawn = [int(by_logarithm.sample(source)) for _ in range(300)]
    assert sum(number < 10 for number in drawn) == pytest.approx(100, abs=40)  # one of three decades
    assert min(drawn) >= 1
    assert max(drawn) <= 1000
