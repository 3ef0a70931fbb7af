"""Commands on a run whose folder was copied in part say what is missing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small import train

from ippo_cli.api.run import Run
from ippo_cli.cli import doctor, report, runs
from ippo_cli.compose.configured import load_run_config
from ippo_cli.runs.missing_parts import find_missing_parts
from ippo_cli.runs.records import RunRecord


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole"), "tracker.samples_every=1")


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def cut_file(file: Path, size: int) -> None:
    os.truncate(file, size)


def test_whole_run_lacks_nothing(run: Path) -> None:
    assert find_missing_parts(RunRecord(run)) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: cut_file(run / "metrics.jsonl", 3000), r"metrics.jsonl has 1 of 5 rows"),
        (lambda run: (run / "metrics.jsonl").unlink(), r"metrics.jsonl has 0 of 5 rows"),
        (lambda run: (run / "config.yaml").unlink(), r"config.yaml cannot be read"),
        (lambda run: (run / "run.json").write_text("{"), r"run.json cannot be read"),
        (
            lambda run: cut_file(run / "checkpoints/step_00000004/low/actor/model.safetensors", 100),
            r"checkpoints/step_00000004/low/actor/model.safetensors has 100 of ",
        ),
        (
            lambda run: (run / "checkpoints/step_00000004/low/actor/config.json").unlink(),
            r"checkpoints/step_00000004/low/actor/config.json is missing",
        ),
        (
            lambda run: (run / "checkpoints/step_00000004/manifest.json").unlink(),
            r"checkpoints/step_00000004/manifest.json cannot be read",
        ),
        (
            lambda run: shutil.rmtree(run / "checkpoints/step_00000004"),
            r"checkpoints/step_00000004, which latest.json names, is missing",
        ),
        (
            lambda run: cut_file(run / "samples/train_00000002.jsonl", 50),
            r"samples/train_00000002.jsonl ends within a line",
        ),
    ],
)
def test_missing_part_is_named(damage: Callable[[Path], object], message: str, run: Path) -> None:
    damage(run)
    assert any(text.startswith(message) for text in find_missing_parts(RunRecord(run)))


def test_commands_report_missing_rows(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut_file(run / "metrics.jsonl", 3000)
    missing = "metrics.jsonl has 1 of 5 rows"
    doctor.report([str(run)])
    shown = capsys.readouterr().out
    assert "done after 4 iterations, of which 0 can be examined" in shown
    assert f"incomplete: {missing}" in shown
    doctor.report([str(run), "json=true"])
    assert json.loads(capsys.readouterr().out)["missing"] == [missing]
    report.write_page([str(run), f"to={run / 'page.html'}"])
    assert f"is incomplete: {missing}" in capsys.readouterr().out
    runs.show_command([str(run)])
    assert missing in capsys.readouterr().out
    runs.list_command([str(run)])
    assert "done, incomplete" in capsys.readouterr().out
    load_run_config(run, str(run), [])
    assert f"is incomplete: {missing}" in capsys.readouterr().err
    assert Run(run).missing == [missing]
