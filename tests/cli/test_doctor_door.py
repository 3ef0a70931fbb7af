"""`ippo-doctor`: the report of a run and of this machine, errors and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ippo_cli.cli import doctor
from ippo_cli.compose import exits
from ippo_cli.compose.load import compose_node, resolve_config, to_yaml

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run the command in `tmp_path`; return its exit code, output and error output."""
    monkeypatch.chdir(tmp_path)

    def called(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ippo-doctor", *arguments])
        monkeypatch.setattr(exits, "exit_process", sys.exit)
        with pytest.raises(SystemExit) as raised:
            doctor.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(raised.value.code or 0), captured.out, captured.err

    return called


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a constant reward and a warning that contains a secret."""
    folder = tmp_path / "outputs" / "default" / "20260101-000000-aaaaaa"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(resolve_config(compose_node([]))))
    (folder / "overrides.json").write_text("[]")
    warnings = {"sizes": "token sk-aaaaaaaaaaaaaaaaaaaaaaaa \x1b[2J"}
    (folder / "run.json").write_text(json.dumps({"state": "done", "warnings": warnings}))
    metrics = {"score/mean": 0.5, "score/std": 0.0, "rollout/truncated_fraction": 0.0, "score/failed_fraction": 0.0}
    rows = [
        {"iteration": n} | {f"{agent}/{key}": value for agent in ("low", "high") for key, value in metrics.items()}
        for n in range(1, 13)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_failed_run_shows_its_error(call: Call, run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "run.json").write_text(json.dumps({"state": "failed", "error": "every reward failed: KeyError: 'answer'"}))
    (run / "command.txt").write_text("ippo-train reward=function reward.function=my.py:score\n")
    (run / "errors").mkdir()
    (run / "errors" / "rank_0.txt").write_text("Traceback")
    code, output, _ = call(str(run))
    lines = output.splitlines()
    assert code == 0
    assert lines[0].endswith(": failed after 0 iterations")
    assert lines[1] == "the run failed before its first iteration ended: every reward failed: KeyError: 'answer'"
    assert "the traceback is in outputs/default/20260101-000000-aaaaaa/errors/rank_0.txt" in " ".join(output.split())
    assert "    ippo-train reward=function reward.function=my.py:score" in lines
    assert "no training iteration" not in output


def test_diagnosis_of_a_run(call: Call, run: Path) -> None:
    code, output, _ = call(str(run))
    lines = output.splitlines()
    assert code == 0
    assert lines[0] == "outputs/default/20260101-000000-aaaaaa: done after 12 iterations"
    assert lines[1] == "1. constant reward"
    assert "low/score/std: 0 -> 0  iterations 1 to 12" in output
    assert "the run printed these warnings" in output
    assert "sk-aaaa" not in output
    assert "\x1b" not in output


def test_damaged_rows_are_reported(call: Call, run: Path) -> None:
    rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([*rows[:4], "oops\n", *rows[4:]]))
    assert call(str(run))[1].splitlines()[:2] == [
        "outputs/default/20260101-000000-aaaaaa: done after 4 iterations",
        "incomplete: metrics.jsonl is damaged at line 5: later rows are not read",
    ]
    assert json.loads(call(str(run), "--json")[1])["damaged_line"] == 5


def test_diagnosis_as_json(call: Call, run: Path) -> None:
    data = json.loads(call(str(run.parent), "--json")[1])
    assert data["state"] == "done"
    assert [finding["condition"] for finding in data["findings"]] == ["equal_scores"]
    assert data["findings"][0]["certainty"] == "certain"
    assert data["findings"][0]["evidence"][0] == {
        "name": "low/score/std",
        "values": "0 -> 0",
        "iterations": [1, 12],
    }
    assert "kl_coefficient" in data["not_checked"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("missing",), 2, "ippo: missing is not a run;"),
        (("a", "b"), 2, "a is not a run; use"),
        (("--verbose",), 2, "--verbose is not an option"),
        (("net=true",), 2, "is not an option of this command"),
        (("network=maybe",), 2, "network=maybe is neither true nor false"),
    ],
)
def test_errors(arguments: tuple[str, ...], code: int, message: str, call: Call) -> None:
    found, _, error = call(*arguments)
    assert found == code
    assert message in " ".join(error.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "b"), "names several runs"),
        (("a", "network=true"), "network=true has no effect on the diagnosis of a run"),
    ],
)
def test_contradictions_with_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "config.yaml").touch()
        (folder / "overrides.json").touch()
    code, _, error = call(*arguments)
    assert code == 2
    assert message in " ".join(error.split())


@pytest.mark.slow
def test_report_of_this_machine(call: Call) -> None:
    code, output, _ = call("--json")
    data = json.loads(output)
    assert code == 0
    assert data["machine"]["torch"]["version"]
    assert data["machine"]["deepspeed"]["ops"]
    assert data["machine"]["hub"]["answer"] == "not tested"
