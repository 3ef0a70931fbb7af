"""Arguments, output and exit codes of `ippo-verify`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from small import train

from ippo_cli.cli.verify import main
from ippo_cli.compose import exits


def call(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(exits, "exit_process", sys.exit)
    monkeypatch.setattr(sys, "argv", ["ippo-verify", *arguments])
    with pytest.raises(SystemExit) as leaving:
        main()
    return int(leaving.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "b"], "a b is not exactly one run"),
        (["nowhere"], "ippo: nowhere is not a run;"),
        (
            ["a", "iteration=3"],
            "iteration=3 is not an option of ippo-verify (closest: iterations); use iterations= count= seed= span= to=",
        ),
        (["a", "iterations=0"], "iterations=0 must be iterations, counted from 1"),
        (["a", "count=-1"], "count=-1 must be a whole number of at least 0"),
        (["a", "iterations=1", "seed=2"], "seed=2 selects random iterations; remove it, or iterations="),
    ],
)
def test_wrong_arguments(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.yaml").write_text("")
    (tmp_path / "a" / "overrides.json").write_text("[]")
    assert call(arguments, monkeypatch) in (2, 14)
    assert message in " ".join(capsys.readouterr().err.split())


def test_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    folder = train(tmp_path, "task=sorting_solo", "num_iterations=1", "tracker.samples_every=1", "evaluation.every=0")
    capsys.readouterr()
    assert call([str(folder), "count=0"], monkeypatch) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last == f"verified: {folder}/verification.json"
    sample = folder / "samples/train_00000001.jsonl"
    sample.write_text(sample.read_text().replace("0", "1", 1))
    assert call([str(folder), "count=0", f"to={tmp_path}/certificate.json"], monkeypatch) == 15
    *_, differs, last = capsys.readouterr().out.splitlines()
    assert differs.startswith("differs: samples/train_00000001.jsonl: is not the file that history.jsonl, line 3")
    assert last == f"NOT VERIFIED: {tmp_path}/certificate.json"
    assert json.loads((tmp_path / "certificate.json").read_text())["result"] == "differs"
