"""Which responses have a form."""

from __future__ import annotations

import pytest

from ippo_cli.rewards.format import FormatReward


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ("<think>a\nb</think> 3", 1.0),
        ("  <think></think>\n", 1.0),
        ("so <think>a</think> 3", 0.0),
        ("<think>a", 0.0),
        ("", 0.0),
    ],
)
def test_the_whole_response_must_match_over_line_ends(text: str, worth: float) -> None:
    assert FormatReward("<think>.*</think>.*")([{}], {"a": [text]}).agent == {"a": [worth]}


def test_the_team_has_the_mean_over_its_agents() -> None:
    assert FormatReward(r"\d+")([{}], {"a": ["12"], "b": ["x"]}).team == [0.5]
