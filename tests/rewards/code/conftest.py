"""Where programs can run here."""

from __future__ import annotations

import pytest

from ippo_cli.rewards.code.sandbox import BWRAP, LOCAL, find_sandbox_problem


@pytest.fixture(scope="session")
def bwrap() -> str:
    """The sandbox, where it works."""
    if (reason := find_sandbox_problem(BWRAP)) is not None:
        pytest.skip(f"no sandbox here: {reason}")
    return BWRAP


@pytest.fixture(scope="session")
def kind() -> str:
    """The sandbox, or none: verdicts are the same."""
    return LOCAL if find_sandbox_problem(BWRAP) is not None else BWRAP
