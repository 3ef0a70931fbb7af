"""Printed commands give the intended arguments when pasted into bash."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ippo_cli.compose.arguments import normalize_arguments, quote_override
from ippo_cli.compose.exits import format_block
from ippo_cli.compose.resume import resolve_resume
from ippo_cli.config.commands import (
    hydra_override,
    parse_path,
    parse_paths,
    quote_for_hydra,
    quote_for_shell,
    shell_command,
)
from ippo_cli.config.errors import ResumeError

HOSTILE = [
    "plain",
    "a=b",
    "with space",
    "two  spaces",
    "a,b",
    "[a]",
    "a[1]",
    "(a)",
    "a(b)",
    "{a: b}",
    "it's",
    "'quoted'",
    '"quoted"',
    'say "x"',
    "ünï",
    "模型",
    "a;b&c|d",
    "$HOME",
    "${name}",
    "`id`",
    "#a",
    "~a",
    "a\\",
    "a\\'b",
    "*",
    "what?",
    "-m",
    "!x",
    "a\nb",
    "a\tb",
    "a\u00a0b",
    "null",
    "1e5",
    " a ",
    "a=b [1] (x), 'q' \"d\" ü $h #c &;",
]


def pasted(command: str) -> list[str]:
    """The arguments that bash parses from a pasted line."""
    script = f"show() {{ printf '%s\\0' \"$@\"; }}\nshow {command.partition(' ')[2]}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("name", HOSTILE)
def test_resume_command_survives_bash(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / name / "default"
    folder.mkdir(parents=True)
    command = shell_command("ippo-train", "-m", ("resume", f"{name}/default"), ("output_dir", name))
    assert command.isprintable()
    flag, resume, output = pasted(command)
    assert (flag, resume) == ("-m", f"resume={name}/default")
    assert parse_path(resume.partition("=")[2]).absolute() == folder
    assert parse_paths(resume.partition("=")[2]) == [f"{name}/default"]
    assert pasted(f"x {quote_for_shell(output)}") == [output]
    # An error block neither wraps nor escapes the command.
    assert command in format_block(f"stop requested; saved after iteration 12; resume with: {command}").splitlines()[-1]


@pytest.mark.parametrize("name", [name for name in HOSTILE if "\n" not in name and "$" not in name])
def test_hydra_reads_a_quoted_value_as_text(name: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    text = hydra_override("output_dir", name)
    assert quote_override(text) == text
    parsed = OverridesParser.create().parse_override(text)
    assert not parsed.is_sweep_override()
    assert name in ("null", "1e5") or parsed.value() == name


@pytest.mark.parametrize("name", HOSTILE)
def test_parse_path_with_and_without_hydra_quotes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    assert parse_path(name).absolute() == tmp_path / name
    if "\n" not in name and "$" not in name:
        assert parse_path(quote_for_hydra(name)).absolute() == tmp_path / name


def test_parse_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b c", "d,e"):
        (tmp_path / name).mkdir()
    assert parse_paths("[a,b c]") == ["a", "b c"]
    assert parse_paths("a, 'd,e'") == ["a", "d,e"]
    assert parse_paths("d,e") == ["d,e"]
    assert parse_paths("[]") == []
    assert parse_paths("") == []


@pytest.mark.parametrize("name", ["ünï", "a=b", "[a]", "a b"])
def test_resume_value_is_literal(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert normalize_arguments([f"resume={name}/x"]) == [f"resume={name}/x"]
    (tmp_path / name / "x").mkdir(parents=True)
    (tmp_path / name / "x" / "config.yaml").write_text("{}")
    with pytest.raises(ResumeError, match="ended before its first checkpoint"):
        resolve_resume(normalize_arguments([f"resume={name}/x"]))


def test_long_command_is_not_wrapped() -> None:
    command = shell_command("ippo-train", ("resume", "/home/" + "long name/" * 20))
    shown = format_block(f"saved after iteration 3; resume with: {command}").splitlines()
    assert command in shown
    assert max(map(len, format_block("x" * 500).splitlines())) <= 110


def test_long_path_is_not_wrapped() -> None:
    path = "/" + "/".join(["a-folder"] * 20) + "/file.py:make"
    text = format_block(f"task.environment={path} fails; correct it there")
    assert f"task.environment={path}" in text.splitlines()
    assert max(map(len, format_block("x" * 500).splitlines())) <= 100
