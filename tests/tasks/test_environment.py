"""The environment pool, and copies of steps."""

from __future__ import annotations

import time
from dataclasses import fields, replace

import pytest

from ippo_cli.tasks.environment import EnvironmentPool, Step


def test_at_work_counts_seconds_also_after_errors() -> None:
    pool = EnvironmentPool(lambda: None)  # type: ignore[arg-type, return-value]
    with pool.measure_time():
        time.sleep(0.02)
    time.sleep(0.05)
    first = pool.seconds
    assert 0.02 <= first < 0.05
    with pytest.raises(ValueError), pool.measure_time():  # noqa: PT011, PT012
        time.sleep(0.02)
        raise ValueError
    assert pool.seconds >= first + 0.02


def test_with_observations_keeps_other_fields() -> None:
    step = Step(
        observations={"a": "old"},
        rewards={"a": 0.5},
        terminated=True,
        truncated=True,
        unfinished=frozenset({"a"}),
        ended=frozenset({"b"}),
        parts={"success": 1.0},
    )
    assert all(getattr(step, field.name) != field.default for field in fields(Step))  # no field has its default value
    assert step.with_observations({"a": "new"}) == replace(step, observations={"a": "new"})
