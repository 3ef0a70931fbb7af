"""`ippo-eval` before anything is loaded: its own keys, a run's keys, and what is told where neither fits."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ippo_cli.cli import evaluate, exits

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def ippo_eval(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command in this process: its exit code, and what it said."""

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ippo-eval", *arguments])
        monkeypatch.setattr(exits, "leave", sys.exit)
        with pytest.raises(SystemExit) as leaving:
            evaluate.main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return int(leaving.value.code or 0), " ".join((said.out + said.err).split())

    return call


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    (tmp_path / "overrides.json").write_text(json.dumps(["critic=value_head"]))
    return tmp_path


def test_without_arguments_it_says_how_it_is_used(ippo_eval: Call) -> None:
    for arguments in ((), ("--help",), ("run=x", "-h")):
        code, said = ippo_eval(*arguments)
        assert code == 0
        assert said.startswith("ippo-eval: ")


def test_a_run_must_be_named_and_be_there(ippo_eval: Call, tmp_path: Path) -> None:
    code, said = ippo_eval("seed=1")
    assert (code, said.split(";")[0]) == (2, "ippo: run= is missing")
    code, said = ippo_eval(f"run={tmp_path}")
    assert code == 14
    assert "there is no run" in said


def test_a_mistake_among_the_runs_keys_is_blamed_and_not_the_run(ippo_eval: Call, run: Path) -> None:
    code, said = ippo_eval(f"run={run}", "checkpoint=best", "evaluation.sed=1")
    assert code == 2
    assert said.startswith("ippo: evaluation.sed=1 is no key; did you mean evaluation.seed")


def test_rules_hold_for_an_evaluation_too(ippo_eval: Call, run: Path) -> None:
    code, said = ippo_eval(f"run={run}", "rollout.temperature=0")
    assert code == 2
    assert said.startswith("ippo: rollout.temperature=0.0 is out of range")


def test_garbled_overrides_are_told(ippo_eval: Call, run: Path) -> None:
    (run / "overrides.json").write_text("{")
    code, said = ippo_eval(f"run={run}")
    assert code == 14
    assert "overrides.json cannot be read" in said


def test_a_run_without_a_checkpoint_is_told(ippo_eval: Call, run: Path) -> None:
    code, said = ippo_eval(f"run={run}")
    assert code == 14
    assert "there is no intact checkpoint=latest" in said
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "latest.json").write_text('{"checkpoint": "step_00000002"}')
    code, said = ippo_eval(f"run={run}", "checkpoint=best")
    assert code == 14
    assert "no evaluation was better than the one before training" in said
    code, said = ippo_eval(f"run={run}", "checkpoint=newest")
    assert code == 2
    assert said.startswith("ippo: checkpoint=newest is not known; use latest, best or an iteration's number")
