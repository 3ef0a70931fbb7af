"""Texts of actions: writing and parsing."""

from __future__ import annotations

import pytest

from ippo_cli.tasks.environments.spaces import ActionTexts

WAYS = ActionTexts(4, names=("left", "down", "right", "up"))


@pytest.mark.parametrize("text", ["down", " Down\n", "d", "D", "1", " 1 "])
def test_action_is_read_by_name_letter_or_number(text: str) -> None:
    assert WAYS.read(text) == 1


@pytest.mark.parametrize("text", ["", " ", "down.", "do", "go down", "dd", "4", "-1", "01", "1.0", "+1", "¹"])
def test_other_texts_are_invalid(text: str) -> None:
    assert WAYS.read(text) is None


def test_ambiguous_first_letter_is_invalid() -> None:
    hands = ActionTexts(5, names=("rock", "paper", "scissors", "spock", "lizard"))
    assert hands.read("s") is None
    assert hands.read("spock") == 3
    assert [hands.write(action) for action in hands.actions] == ["r", "p", "2", "3", "l"]


def test_written_actions_are_read_back() -> None:
    for texts in (WAYS, ActionTexts(3), ActionTexts(3, start=-1), ActionTexts(2, names=("stay", "s"))):
        assert [texts.read(texts.write(action)) for action in texts.actions] == list(texts.actions)


def test_numbers_start_at_space_start() -> None:
    shifted = ActionTexts(3, start=5)
    assert [shifted.read(text) for text in ("4", "5", "7", "8")] == [None, 5, 7, None]


def test_actions_are_listed_by_name_or_number() -> None:
    assert WAYS.describe() == "left, down, right, up"
    assert WAYS.describe([3]) == "up"
    assert ActionTexts(3).describe() == "0, 1, 2"
