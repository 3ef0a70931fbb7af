"""Lines that are commands of the conversation, and lines that a model reads."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ippo_cli.evaluation.chat import COMMANDS, _ExitRequested, _read_line, _ResetRequested


def line(*typed: str) -> tuple[str, list[str]]:
    """The line that a model reads, and what was said before."""
    lines: Iterable[str] = iter(typed)
    said: list[str] = []
    return _read_line(lambda prompt: next(lines, None), said.append, "you> "), said


@pytest.mark.parametrize("command", ["/exit", "/quit", " /QUIT ", "/bye", "/q"])
def test_a_conversation_ends(command: str) -> None:
    with pytest.raises(_ExitRequested):
        line(command)


def test_the_end_of_the_input_ends_it() -> None:
    with pytest.raises(_ExitRequested):
        line("", "  ")


def test_a_conversation_begins_again() -> None:
    with pytest.raises(_ResetRequested):
        line("/reset")


def test_commands_never_reach_a_model() -> None:
    assert line("/help", "hello") == ("hello", [COMMANDS])
    assert line("/qiut", "hello") == ("hello", [f"/qiut is no command; {COMMANDS}"])


@pytest.mark.parametrize(
    ("typed", "read"), [("//quit", "/quit"), ("/home is full", "/home is full"), ("1/2", "1/2"), ("a // b", "a // b")]
)
def test_other_lines_are_read_as_they_are(typed: str, read: str) -> None:
    assert line(typed) == (read, [])
