"""The processes of a run's trackers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ippo_cli.runs.watchdog import descendants, outliving


@pytest.fixture
def tracking() -> Callable[[], list[int]]:
    """Says which processes trackers have, those that they have started among them, of this test alone."""
    before = set(outliving)
    return lambda: [number for process in outliving - before for number in (*descendants(process), process)]
