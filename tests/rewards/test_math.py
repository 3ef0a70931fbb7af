"""Answers compared as mathematics, in processes that are killed where that takes too long."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

pytest.importorskip("math_verify", reason="needs the extra `math`")

from ippo_cli.rewards.math import MathReward


@pytest.fixture(scope="module")
def reward() -> Iterator[MathReward]:
    reward = MathReward({"solver": "{answer}"}, workers=2, timeout_s=2.0)
    yield reward
    reward.close()


CASES = [
    (r"\frac{1}{2}", r"so it is $\frac{2}{4}$", 1.0, 1.0),
    ("1/2", r"\boxed{0.5}", 1.0, 1.0),
    ("x^2+1", "$1+x^2$", 1.0, 1.0),
    (r"\{1,2\}", r"$\{2,1\}$", 1.0, 1.0),
    (r"2\sqrt{2}", r"\boxed{\sqrt{8}}", 1.0, 1.0),
    ("She has 9 * 2.\n#### 18", "the answer is 18", 1.0, 1.0),
    ("1,024", r"\boxed{1024}", 1.0, 1.0),
    ("18", r"\boxed{19}", 0.0, 1.0),
    ("18", "no idea", 0.0, 0.0),
    ("18", "", 0.0, 0.0),
]


def test_answers_are_compared_as_mathematics(reward: MathReward) -> None:
    found = reward([{"answer": case[0]} for case in CASES], {"solver": [case[1] for case in CASES]})
    assert not found.failures
    assert found.team == found.agent["solver"] == [case[2] for case in CASES]
    assert found.parts == {"found": [case[3] for case in CASES]}


def test_a_tower_of_powers_is_killed_and_fails_alone(reward: MathReward) -> None:
    reward([{"answer": "1"}] * 2, {"solver": ["1", "2"]})  # the processes are there
    tower = r"\boxed{9^{9^{9^{9^{9^{9}}}}}}"
    begun = time.monotonic()
    found = reward([{"answer": "3"}, {"answer": "3"}], {"solver": [tower, r"\boxed{3}"]})
    assert time.monotonic() - begun < 10
    assert list(found.failures) == [0]
    assert "longer than 2 s" in str(found.failures[0])
    assert found.team is not None
    assert found.team[1] == 1.0


def test_a_reference_that_is_no_mathematics_fails(reward: MathReward) -> None:
    found = reward([{"answer": ""}], {"solver": ["1"]})
    assert "is no mathematics" in str(found.failures[0])
