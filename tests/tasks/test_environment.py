"""The pool that environments of a task are taken from."""

from __future__ import annotations

import time

import pytest

from ippo_cli.tasks.environment import EnvironmentPool


def test_seconds_count_what_is_spent_at_work_even_where_it_fails() -> None:
    pool = EnvironmentPool(lambda: None)  # type: ignore[arg-type, return-value]
    with pool.at_work():
        time.sleep(0.02)
    time.sleep(0.05)
    first = pool.seconds
    assert 0.02 <= first < 0.05
    with pytest.raises(ValueError), pool.at_work():  # noqa: PT011, PT012
        time.sleep(0.02)
        raise ValueError
    assert pool.seconds >= first + 0.02
