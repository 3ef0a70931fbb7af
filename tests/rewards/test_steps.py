"""Calculations that are written down: each step by itself."""

from __future__ import annotations

import pytest

from ippo_cli.rewards.steps import score

STEPS = {"steps": [22, 18]}


@pytest.mark.parametrize(
    ("text", "points", "steps", "right"),
    [
        ("17 + 5 = 22, 22 - 4 = 18", 1.0, 1.0, 1.0),
        ("17+5=22. Then 22-4 = 18.", 1.0, 1.0, 1.0),
        ("17 + 5 = 22, 22 - 4 = 9", (0.75 + 0.25 * (1 + 0.5)) / 2, 0.5, 0.0),
        ("17 + 5 = 20, 20 - 2 = 18", (0.75 + 0.25 * (1 - 2 / 22 + 1)) / 2, 0.5, 1.0),
        ("22 - 4 = 18", 0.25 * (1 - 4 / 22) / 2, 0.0, 1.0),  # the second step stands where the first one should
        ("17 + 5 = 22", 0.5, 0.5, 0.0),
        ("18", 0.0, 0.0, 1.0),  # no step is written
        ("17 + 5 = 22, 22 - 4 = 18, 18 * 2 = 36", 1.0, 1.0, 0.0),  # what follows is no step, and the answer comes last
        ("17 + 5 = , 22 - 4 = -18", 0.0, 0.0, 0.0),
        ("", 0.0, 0.0, 0.0),
    ],
)
def test_what_a_calculation_earns(text: str, points: float, steps: float, right: float) -> None:
    found = score([STEPS], {"solver": [text]})
    assert found["team"] == [pytest.approx(points)]
    assert found["parts"] == {"steps": [steps], "right": [right]}


def test_several_agents_share_the_mean_of_what_they_earn() -> None:
    found = score([STEPS, STEPS], {"one": ["1 = 22, 2 = 18", ""], "other": ["", ""]})
    assert found == {"team": [0.5, 0.0], "parts": {"steps": [0.5, 0.0], "right": [0.5, 0.0]}}
