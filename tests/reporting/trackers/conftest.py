"""The processes of a run's trackers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ippo_cli.runs.watchdog import descendants, surviving_children


@pytest.fixture
def tracking() -> Callable[[], list[int]]:
    """Says which processes trackers have, those that they have started among them, of this test alone."""
    before = set(surviving_children)
    return lambda: [number for process in surviving_children - before for number in (*descendants(process), process)]
