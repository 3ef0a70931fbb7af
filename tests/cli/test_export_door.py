"""`ippo-export` and `ippo-chat` before anything is loaded: their keys and error messages."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ippo_cli.cli import chat, export
from ippo_cli.compose import exits
from ippo_cli.compose.load import compose_node, resolve_config, to_yaml

LOADING = re.compile(r"ippo-\w+: loading libraries and weights\n")  # printed before errors of checkpoints
Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command in this process; return its exit code and its output."""

    def called(command: ModuleType, *arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ippo", *arguments])
        monkeypatch.setattr(exits, "exit_process", sys.exit)
        with pytest.raises(SystemExit) as raised:
            command.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(raised.value.code or 0), " ".join((captured.out + LOADING.sub("", captured.err)).split())

    return called


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(resolve_config(compose_node([]))))
    (folder / "overrides.json").write_text(json.dumps([]))
    return folder


@pytest.mark.parametrize(("command", "name"), [(export, "ippo-export"), (chat, "ippo-chat")])
def test_help_and_version(command: ModuleType, name: str, call: Call) -> None:
    for arguments in ((), ("--help",)):
        code, output = call(command, *arguments)
        assert (code, output.startswith(f"{name}: ")) == (0, True)
    assert call(command, "--version")[1].startswith(name)


def test_invalid_exports_rejected(call: Call, run: Path, tmp_path: Path) -> None:
    for arguments, code, begins in (
        ((f"run={run}",), 2, "ippo: to= is missing; use to=exported"),
        (("to=x",), 2, "ippo: run= is missing"),
        ((f"run={run}", "to=x", "seed=1"), 2, "ippo: seed=1 has no effect on an export; keys with an effect: run"),
        ((f"run={run}", "to=x", "merged=no"), 2, "ippo: merged=no is neither true nor false"),
        ((f"run={tmp_path / 'none'}", "to=x"), 2, "ippo: run="),
        ((f"run={run}", f"to={tmp_path / 'x'}"), 14, f"ippo: run={run}: there are no checkpoints"),
        ((f"run={run}", "--to", "x"), 2, "ippo: --to x is not a flag; settings are written without dashes"),
    ):
        found = call(export, *arguments)
        assert (found[0], found[1][: len(begins)]) == (code, begins)
    assert not (tmp_path / "x").exists()


def test_invalid_chats_rejected(call: Call, run: Path) -> None:
    for arguments, code, begins in (
        ((f"run={run}", "model=x"), 2, f"ippo: run={run} cannot be combined with model=x"),
        (("agent=low",), 2, "ippo: run= is missing; use run=outputs/NAME/ID, or model=PATH"),
        ((f"run={run}", "task.eval_size=3"), 2, "ippo: task.eval_size=3 has no effect on a chat"),
        ((f"run={run}", "rollout.buffer_size=3"), 2, "ippo: rollout.buffer_size=3 has no effect on"),
        ((f"run={run}", "seed=x"), 2, "ippo: seed=x must be a whole number of at least 0"),
        (("model=x", "checkpoint=best"), 2, "ippo: checkpoint=best selects a checkpoint of a run"),
        (("model=/no/such",), 2, "ippo: actor.model=/no/such names no file or folder"),
        ((f"run={run}", "agent=low"), 14, f"ippo: run={run}: there are no checkpoints"),
    ):
        found = call(chat, *arguments)
        assert (found[0], found[1][: len(begins)]) == (code, begins)
