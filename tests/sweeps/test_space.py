"""What a search draws from: ranges and lists as they would be typed, and how a value moves in them."""

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


def test_each_form_of_a_sweep_is_a_dimension() -> None:
    assert dimension("interval(0, 1)") == Dimension(key="k", low=0.0, high=1.0)
    assert dimension("tag(log, interval(1e-5, 1e-3))") == Dimension(key="k", low=1e-5, high=1e-3, log=True)
    assert dimension("int(interval(1, 8))") == Dimension(key="k", low=1, high=8, integer=True)
    assert dimension("choice(a, b)") == dimension("a,b") == Dimension(key="k", choices=("a", "b"))
    assert dimension("range(1, 4)").choices == ("1", "2", "3")


def test_what_is_typed_goes_before_the_file_and_single_values_are_fixed() -> None:
    found, fixed = parse_space(
        {"a": "interval(0,1)", "b": "interval(0,1)"}, ["a=1,2", "b=3", "c=4", "algorithm=glob(*)"], no_options
    )
    assert found == [Dimension(key="a", choices=("1", "2")), Dimension(key="algorithm", choices=("ippo", "ppo"))]
    assert fixed == ["b=3", "c=4"]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("interval(1, 1)", "is an empty interval"),
        ("tag(log, interval(0, 1))", "has no logarithm at its low end"),
        ("3", "has one value"),
        ("interval(1", "is no range of values"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(text: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=r"^sweep\.space\.k=.*") as raised:
        dimension(text)
    assert rule in str(raised.value)


def test_numbers_stay_within_their_ends_whatever_is_drawn_or_multiplied() -> None:
    rate = dimension("tag(log, interval(1e-5, 1e-3))")
    drawn = [float(rate.sample(random.Random(seed))) for seed in range(200)]
    assert all(1e-5 <= number <= 1e-3 for number in drawn)
    assert 60 < sum(number < 1e-4 for number in drawn) < 140  # as likely in either decade
    assert rate.step_value("0.0001", 1.2) == "0.00012"
    assert rate.step_value("0.0001", 0.8) == "8e-05"
    assert rate.step_value("0.0009", 1.2) == rate.step_value("0.001", 1.2) == "0.001"


def test_whole_numbers_and_lists_move_by_one_step_at_least() -> None:
    epochs = dimension("int(interval(1, 8))")
    assert [epochs.step_value("2", factor) for factor in (0.8, 1.2)] == ["1", "3"]
    assert epochs.step_value("8", 1.2) == "8"
    batch = dimension("choice(16, 32, 64)")
    assert [batch.step_value("32", factor) for factor in (0.8, 1.2)] == ["16", "64"]
    assert batch.step_value("64", 1.2) == "64"


def test_whole_numbers_are_drawn_by_their_logarithms_where_that_is_asked_for() -> None:
    by_logarithm, source = dimension("tag(log, int(interval(1, 1000)))"), random.Random(0)
    drawn = [int(by_logarithm.sample(source)) for _ in range(300)]
    assert sum(number < 10 for number in drawn) == pytest.approx(100, abs=40)  # one of three decades
    assert min(drawn) >= 1
    assert max(drawn) <= 1000
