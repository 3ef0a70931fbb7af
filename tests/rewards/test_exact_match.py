"""Fractions of correct characters, computed by hand."""

from __future__ import annotations

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Match
from ippo_cli.rewards.exact_match import ExactMatchReward

ANSWERS = {"low": "{low}", "high": "{high}"}
EXAMPLE = {"low": "abc", "high": "def"}


def given(match: Match, low: str, high: str) -> tuple[float, dict[str, float]]:
    reward = ExactMatchReward(ANSWERS, match)([EXAMPLE], {"low": [low], "high": [high]})
    assert reward.team is not None
    return reward.team[0], {name: numbers[0] for name, numbers in reward.agent.items()}


@pytest.mark.parametrize(
    ("low", "high", "team", "own"),
    [
        ("abc", "def", 1.0, {"low": 1.0, "high": 1.0}),
        ("abc", "dxf", 5 / 6, {"low": 1.0, "high": 2 / 3}),
        ("xyz", "", 0.0, {"low": 0.0, "high": 0.0}),
        ("bca", "def", 0.5, {"low": 0.0, "high": 1.0}),  # compared by position
        ("abcd", "def", 6 / 7, {"low": 3 / 4, "high": 1.0}),  # extra characters count as wrong
        ("ab", "def", 5 / 6, {"low": 2 / 3, "high": 1.0}),
    ],
)
def test_fraction_of_correct_characters(low: str, high: str, team: float, own: dict[str, float]) -> None:
    found, agents = given(Match.characters, low, high)
    assert found == pytest.approx(team)
    assert agents == pytest.approx(own)


def test_exact_requires_all_agents() -> None:
    assert given(Match.exact, "abc", "def")[0] == 1.0
    assert given(Match.exact, "abc", "deg")[0] == 0.0
    assert given(Match.exact, "abc ", "def")[0] == 0.0


def test_both_measures_are_logged() -> None:
    for match in Match:
        reward = ExactMatchReward(ANSWERS, match)([EXAMPLE], {"low": ["abc"], "high": ["dex"]})
        assert reward.parts["exact"] == [0.0]
        assert reward.parts["characters"] == pytest.approx([5 / 6])


def test_empty_reference() -> None:
    reward = ExactMatchReward({"low": "{low}", "high": ""}, Match.characters)
    for text, share in (("", 1.0), ("x", 3 / 4)):
        found = reward([EXAMPLE], {"low": ["abc"], "high": [text]})
        assert found.team == pytest.approx([share])
        assert found.agent["high"] == [float(not text)]


def test_rows_are_independent() -> None:
    reward = ExactMatchReward({"low": "{low}"}, Match.characters)
    found = reward([{"low": "ab"}, {"low": "cd"}], {"low": ["ab", "ab"]})
    assert found.team == [1.0, 0.0]


def test_missing_field_raises() -> None:
    with pytest.raises(ConfigError, match=r"task\.agents\.low\.answer='\{nope\}' names the field 'nope'"):
        ExactMatchReward({"low": "{nope}"}, Match.exact)([EXAMPLE], {"low": ["abc"]})
