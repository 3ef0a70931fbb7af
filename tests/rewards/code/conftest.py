"""Fixtures of sandboxes that work on this machine."""

from __future__ import annotations

import pytest

from ippo_cli.rewards.code.sandbox import BWRAP, LOCAL, find_sandbox_problem


@pytest.fixture(scope="session")
def bwrap() -> str:
    """The bubblewrap sandbox; skips if it does not work."""
    if (reason := find_sandbox_problem(BWRAP)) is not None:
        pytest.skip(f"no sandbox here: {reason}")
    return BWRAP


@pytest.fixture(scope="session")
def kind() -> str:
    """`bwrap` if it works, else `unsafe_local`; both give the same results."""
    return LOCAL if find_sandbox_problem(BWRAP) is not None else BWRAP
