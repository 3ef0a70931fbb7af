"""Fixture for the processes of a run's trackers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ippo_cli.runs.watchdog import descendants, surviving_children


@pytest.fixture
def tracking() -> Callable[[], list[int]]:
    """A function that returns the tracker processes of this test, with their descendants."""
    before = set(surviving_children)
    return lambda: [number for process in surviving_children - before for number in (*descendants(process), process)]
