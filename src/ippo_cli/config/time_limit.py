"""`checkpoint.save_deadline`: deadline before which a run must save and exit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import datetime

from ippo_cli.config.errors import ConfigError

AUTO_DEADLINE = "auto"
DEADLINE_KEY = "checkpoint.save_deadline"


def resolve_deadline(setting: str | None, began: float, job_end: Callable[[], float | None]) -> float | None:
    """Deadline in seconds since 1970, for a process that began at `began` (same unit); None without a deadline.

    `job_end` returns the end of the scheduler's job, for the setting auto.
    """
    if setting is None:
        return None
    if setting == AUTO_DEADLINE:
        return job_end()
    try:
        seconds = float(setting)
    except ValueError:
        return _parse_time(setting)
    if not math.isfinite(seconds) or seconds <= 0:
        raise ConfigError(f"{DEADLINE_KEY}={setting}", "is not in the future", "use seconds from the start, above 0")
    return began + seconds


def check_deadline(setting: str | None) -> None:
    """Raise `ConfigError` for an invalid or past deadline."""
    limit = resolve_deadline(setting, time.time(), lambda: None)
    if limit is not None and limit <= time.time():
        raise ConfigError(
            f"{DEADLINE_KEY}={setting}", "has passed", f"use a later time, or {DEADLINE_KEY}={AUTO_DEADLINE}"
        )


def _parse_time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()  # without a time zone: local time
    except ValueError:
        raise ConfigError(
            f"{DEADLINE_KEY}={text}",
            "is not a time",
            f"use {AUTO_DEADLINE}, null, seconds from the start, or a time such as 2030-01-31T18:00:00",
        ) from None
