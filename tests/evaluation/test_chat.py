"""Commands of the chat, and lines that are sent to a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.evaluation.chat import (
    COMMANDS,
    ChatSettings,
    ExitRequested,
    ResetRequested,
    describe_sampling,
    read_line,
)


def line(*typed: str) -> tuple[str, list[str]]:
    """The line that is sent to a model, and the lines that were printed before."""
    lines: Iterable[str] = iter(typed)
    printed: list[str] = []
    return read_line(lambda prompt: next(lines, None), printed.append, "you> "), printed


@pytest.mark.parametrize("command", ["/exit", "/quit", " /QUIT ", "/bye", "/q"])
def test_exit_commands(command: str) -> None:
    with pytest.raises(ExitRequested):
        line(command)


def test_end_of_input_exits() -> None:
    with pytest.raises(ExitRequested):
        line("", "  ")


def test_reset_command() -> None:
    with pytest.raises(ResetRequested):
        line("/reset")


def test_first_line_names_temperature_and_greedy() -> None:
    config = load_config(["rollout.temperature=0.5"])
    settings = ChatSettings(seed=0, greedy=False, raw=False)
    assert describe_sampling(config, ["low", "high"], settings).startswith("samples at temperature 0.5 (greedy=true")
    assert describe_sampling(config, ["low"], replace(settings, greedy=True)) == "greedy responses"


def test_commands_not_sent_to_model() -> None:
    assert line("/help", "hello") == ("hello", [COMMANDS])
    assert line("/qiut", "hello") == ("hello", [f"/qiut is an unknown command; {COMMANDS}"])


@pytest.mark.parametrize(
    ("typed", "read"), [("//quit", "/quit"), ("/home is full", "/home is full"), ("1/2", "1/2"), ("a // b", "a // b")]
)
def test_other_lines_sent_unchanged(typed: str, read: str) -> None:
    assert line(typed) == (read, [])
