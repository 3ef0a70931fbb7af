"""Fixture of reward settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ippo_cli.config.schema import CreditAssignment, FunctionRewardConfig


@pytest.fixture(scope="session")
def settings() -> Callable[..., FunctionRewardConfig]:
    """Makes reward settings: unmodified team numbers by default, with the given values changed."""
    plain = FunctionRewardConfig(
        kind="function",
        team_weight=1.0,
        agent_weight=0.0,
        turn_weight=1.0,
        credit_assignment=CreditAssignment.none,
        credit_alternatives=None,
        credit_turns=None,
        measure_credit_every=0,
        processor=[],
        scale=1.0,
        shift=0.0,
        clip_low=-10.0,
        clip_high=10.0,
        norm_eps=1e-3,
        failure_budget=1.0,
        reward_batch_rows=0,
        function=None,
        whole_batch=False,
        per_sample=False,
        concurrency=None,
        process=False,
        timeout_s=None,
    )
    return lambda **changes: replace(plain, **changes)
