"""`ippo-export` and `ippo-chat` before anything is loaded: their own keys, and what is told where they do not fit."""

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

LOADING = re.compile(r"ippo-\w+: loading libraries and weights\n")  # before what checkpoints alone can tell
Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """A command in this process: its exit code, and what it said."""

    def called(command: ModuleType, *arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ippo", *arguments])
        monkeypatch.setattr(exits, "exit_process", sys.exit)
        with pytest.raises(SystemExit) as leaving:
            command.main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return int(leaving.value.code or 0), " ".join((said.out + LOADING.sub("", said.err)).split())

    return called


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(resolve_config(compose_node([]))))
    (folder / "overrides.json").write_text(json.dumps([]))
    return folder


@pytest.mark.parametrize(("command", "name"), [(export, "ippo-export"), (chat, "ippo-chat")])
def test_they_say_how_they_are_used(command: ModuleType, name: str, call: Call) -> None:
    for arguments in ((), ("--help",)):
        code, said = call(command, *arguments)
        assert (code, said.startswith(f"{name}: ")) == (0, True)
    assert call(command, "--version")[1].startswith(name)


def test_what_cannot_be_exported_is_told(call: Call, run: Path, tmp_path: Path) -> None:
    for arguments, code, begins in (
        ((f"run={run}",), 2, "ippo: to= is missing; say to=exported"),
        (("to=x",), 2, "ippo: run= is missing"),
        ((f"run={run}", "to=x", "seed=1"), 2, "ippo: seed=1 can have no effect on an export; those that can: run"),
        ((f"run={run}", "to=x", "merged=no"), 2, "ippo: merged=no is neither true nor false"),
        ((f"run={tmp_path / 'none'}", "to=x"), 14, "ippo: run="),
        ((f"run={run}", f"to={tmp_path / 'x'}"), 14, f"ippo: run={run}: there are no checkpoints"),
        ((f"run={run}", "--to", "x"), 2, "ippo: --to x is no flag; settings are written without dashes"),
    ):
        found = call(export, *arguments)
        assert (found[0], found[1][: len(begins)]) == (code, begins)
    assert not (tmp_path / "x").exists()


def test_what_cannot_be_talked_to_is_told(call: Call, run: Path) -> None:
    for arguments, code, begins in (
        ((f"run={run}", "model=x"), 2, f"ippo: run={run} or model= is needed, and not both"),
        (("agent=low",), 2, "ippo: run= or model= is needed"),
        ((f"run={run}", "task.eval_size=3"), 2, "ippo: task.eval_size=3 can have no effect on a conversation"),
        ((f"run={run}", "rollout.buffer_size=3"), 2, "ippo: rollout.buffer_size=3 can have no effect on"),
        ((f"run={run}", "seed=x"), 2, "ippo: seed=x is no number"),
        (("model=x", "checkpoint=best"), 2, "ippo: checkpoint=best names the weights of a run"),
        (("model=/no/such",), 3, "ippo: actor.model=/no/such: there is no such file or folder"),
        ((f"run={run}", "agent=low"), 14, f"ippo: run={run}: there are no checkpoints"),
    ):
        found = call(chat, *arguments)
        assert (found[0], found[1][: len(begins)]) == (code, begins)
