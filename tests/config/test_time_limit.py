"""Values of `checkpoint.save_deadline`."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.time_limit import check_deadline, resolve_deadline


def test_resolve_deadline() -> None:
    assert resolve_deadline(None, 100.0, lambda: 7.0) is None
    assert resolve_deadline("auto", 100.0, lambda: 7.0) == 7.0
    assert resolve_deadline("3600", 100.0, lambda: 7.0) == 3700.0
    assert resolve_deadline("2030-01-31T18:00:00+01:00", 100.0, lambda: 7.0) == 1896109200.0
    assert resolve_deadline("2030-01-31T18:00", 0.0, lambda: 7.0) == datetime(2030, 1, 31, 18).timestamp()


@pytest.mark.parametrize(
    ("text", "message"),
    [("soon", "is not a time"), ("-5", "is not in the future"), ("2020-01-01T00:00:00", "has passed")],
)
def test_invalid_deadlines(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_deadline(text)


def test_future_deadline() -> None:
    check_deadline(datetime.fromtimestamp(time.time() + 60).isoformat())
