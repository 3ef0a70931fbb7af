"""Text of folders, exceptions and notes cannot control a terminal or pass for a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from ippo_cli.compose.exits import run_guarded
from ippo_cli.config.errors import PreflightError
from ippo_cli.runs.folder import display_path, print_warning, resume_command
from ippo_cli.runs.output import print_data, print_text

HOSTILE = "a\x1b[31m\u202e\nippo: done"


def test_only_newlines_and_tabs_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(f"a\t{HOSTILE}\x9b\udc80\u3000")
    assert capsys.readouterr().out == "a\ta\\x1b[31m\\u202e\nippo: done\\x9b\\udc80\u3000\n"


def test_names_of_folders_do_not_begin_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\n" not in display_path(Path(HOSTILE))
    assert resume_command(Path(HOSTILE)).isprintable()
    print_warning(HOSTILE)
    assert capsys.readouterr().out == "warning: a\\x1b[31m\\u202e\\nippo: done\n"


def test_further_lines_of_an_error_are_indented(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        error = PreflightError(f"actor.model={HOSTILE}")
        error.add_note("note\rippo: forged")
        raise error

    assert run_guarded(fail, [], None) == 3
    assert capsys.readouterr().err.splitlines() == [
        r"ippo: actor.model=a\x1b[31m\u202e",
        "  ippo: done",
        "note",
        "  ippo: forged",
    ]


def test_class_names_of_unexpected_errors_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    kind = type("Odd\x1b[31m", (Exception,), {})

    def fail() -> None:
        raise kind("x")

    assert run_guarded(fail, [], None) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_data_for_programs_are_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    print_data("name: a\u200db\n")
    assert capsys.readouterr().out == "name: a\u200db\n"
