"""Keys of a user's class: types, ranges and choices are checked before it is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import pytest

from ippo_cli.config.constraints import OneOf, Range
from ippo_cli.config.errors import ConfigError, split_errors
from ippo_cli.user_code.keys import build_keys


class Order(str, Enum):
    first = "first"
    last = "last"


@dataclass
class Values:
    decay: Annotated[float, Range(0.0, 1.0)] = 0.5
    count: int | None = None
    order: Order = Order.first
    unit: Annotated[str, OneOf(("row", "turn"))] = "row"
    is_wide: bool = False
    numbers: list[int] | None = None
    other: Any = None


class Method:
    Keys = Values


@dataclass
class Loose:
    names: Sequence[str] = ()
    weights: Mapping[str, float] | None = None
    mode: Literal["a", None] = "a"
    order: Order | str = "first"


class LooseMethod:
    Keys = Loose


def build(**args: Any) -> Values:
    return build_keys(Method, "algorithm.advantage=a.py:Method", "algorithm.advantage_args", args)


def test_values_become_the_keys() -> None:
    assert build() == Values()
    found = build(decay=1, count=3, order="last", unit="turn", is_wide=True, numbers=[1], other={"a": 1})
    assert found == Values(1, 3, Order.last, "turn", True, [1], {"a": 1})
    assert found.order is Order.last
    assert build(count=None, numbers=None).count is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("decay", "much", "decay=much must be a number; change the value"),
        ("decay", True, "decay=True must be a number; change the value"),
        ("decay", 1.5, "decay=1.5 is out of range; it must be in [0, 1]; use a number of at most 1"),
        ("decay", None, "decay=null must not be null; set a value, or remove the key"),
        ("count", 1.5, "count=1.5 must be a whole number or null; change the value"),
        ("order", "middle", "order=middle is not known; use one of first last"),
        ("unit", "token", "unit=token is not known; use one of row turn"),
        ("is_wide", 1, "is_wide=1 must be true or false; change the value"),
        (
            "size",
            1,
            "size=1 is not a key of algorithm.advantage=a.py:Method; use one of count decay is_wide numbers order "
            "other unit",
        ),
    ],
)
def test_wrong_values_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(**{name: value})
    assert str(raised.value) == f"algorithm.advantage_args.{message}"


def test_all_mistakes_are_reported() -> None:
    with pytest.raises(ConfigError) as raised:
        build(decay=2, unit="token")
    assert len(split_errors(raised.value)) == 2


def test_class_without_keys() -> None:
    assert build_keys(Order, "algorithm.advantage=a.py:Order", "algorithm.advantage_args", {}) is None


def test_types_that_are_not_checked_take_any_value() -> None:
    values = {"names": ["a", "b"], "weights": {"a": 0.5}, "mode": None, "order": "any"}
    found = build_keys(LooseMethod, "algorithm.advantage=a.py:Method", "algorithm.advantage_args", values)
    assert vars(found) == values
    assert build_keys(LooseMethod, "a", "b", {"order": "last"}).order is Order.last


def test_types_that_only_type_checkers_know_are_not_checked() -> None:
    keys_of = make_dataclass("Keys", [("path", "Path", None)])
    method = type("Method", (), {"Keys": keys_of})
    assert build_keys(method, "a", "b", {"path": "x"}).path == "x"
