"""The learning rate of each iteration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ippo_cli.agents.learner import schedule_factor
from ippo_cli.compose.load import load_config
from ippo_cli.config.schema import Schedule


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule.constant, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]),
        (Schedule.linear, [0.25, 0.5, 0.75, 1.0, 1.0, 0.775, 0.55, 0.325]),
        (Schedule.cosine, [0.25, 0.5, 0.75, 1.0, 1.0, 0.868198, 0.55, 0.231802]),
    ],
)
def test_rate_rises_and_follows_its_schedule(schedule: Schedule, expected: list[float]) -> None:
    actor = replace(load_config([]).actor, lr_schedule=schedule, warmup_iterations=4, min_lr_ratio=0.1)
    found = [schedule_factor(actor, iteration, 8) for iteration in range(8)]
    assert found == pytest.approx(expected, abs=1e-6)
    assert schedule_factor(actor, 8, 8) == pytest.approx(1.0 if schedule is Schedule.constant else 0.1)
