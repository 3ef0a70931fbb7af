"""Scores of calculations written step by step."""

from __future__ import annotations

import pytest

from ippo_cli.rewards.steps import score


@pytest.mark.parametrize(
    ("text", "steps", "near", "right"),
    [
        ("17 + 5 = 22, 22 - 4 = 18", 1.0, 1.0, 1.0),
        ("17+5=22. Then 22-4 = 18.", 1.0, 1.0, 1.0),
        ("17 + 5 = 22, 22 - 4 = 9", 0.5, (1 + 0.5) / 2, 0.0),
        ("17 + 5 = 20, 20 - 2 = 18", 0.5, (1 - 2 / 22 + 1) / 2, 1.0),
        ("22 - 4 = 18", 0.0, (1 - 4 / 22) / 2, 1.0),  # the second step is in the place of the first
        ("17 + 5 = 22", 0.5, 0.5, 0.0),
        ("18", 0.0, 0.0, 1.0),  # without steps
        ("17 + 5 = 22, 22 - 4 = 18, 18 * 2 =", 1.0, 1.0, 0.0),  # the text continues after the answer
        ("17 + 5 = , 22 - 4 = -18", 0.0, 0.0, 0.0),
        ("", 0.0, 0.0, 0.0),
    ],
)
def test_score_of_calculation(text: str, steps: float, near: float, right: float) -> None:
    found = score([{"steps": [22, 18]}], {"solver": [text]})
    assert found["parts"] == {"steps": [steps], "near": [pytest.approx(near)], "right": [right]}
    assert found["team"] == [pytest.approx(0.5 * steps + 0.25 * near + 0.25 * right)]


def test_mean_over_agents() -> None:
    found = score([{"steps": [22, 18]}] * 2, {"one": ["1 = 22, 2 = 18", ""], "other": ["", ""]})
    assert found["team"] == [0.5, 0.0]
    assert found["parts"] == {part: [0.5, 0.0] for part in ("steps", "near", "right")}
