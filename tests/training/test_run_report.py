"""The report at the end of a run: written by default, also after preemption, and never a reason to fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small import new_run, small_config, stopping_reward, train
from synthetic import write_run

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import Preempted, RewardError
from ippo_cli.training import process
from ippo_cli.training.process import run_training, write_run_report

ON = ("tracker.report=true", "tracker.samples_every=1", "num_iterations=2")


def test_report_is_on_by_default() -> None:
    assert load_config().tracker.report is True


def test_finished_run_has_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(tmp_path, *ON)
    assert f"report           {folder}/report.html" in capsys.readouterr().out
    assert "<!doctype html>" in (folder / "report.html").read_text()


def test_no_report_without_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(tmp_path, "num_iterations=1")
    assert not (folder / "report.html").exists()
    assert "report.html" not in capsys.readouterr().out


def test_preempted_run_has_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, folder = new_run(tmp_path, *ON, *stopping_reward(tmp_path))
    monkeypatch.setenv("STOP_AT_CALL", "4")
    with pytest.raises(Preempted):
        run_training(config, folder, resumed=False)
    assert (folder / "report.html").is_file()


def test_failed_run_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("def reward(examples, responses):\n    raise ValueError('no score')\n")
    config, folder = new_run(tmp_path, *ON, "reward=function", f"reward.function={tmp_path}/reward.py:reward")
    with pytest.raises(RewardError):
        run_training(config, folder, resumed=False)
    assert (folder / "report.html").is_file()


def test_failure_of_the_report_is_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, _ = small_config(tmp_path, *ON)
    folder = write_run(tmp_path / "run", iterations=2, files=1, episodes_per_file=1)
    (folder / "report.html").mkdir()
    write_run_report(folder, config.tracker)
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert warnings[0].startswith("warning: report.html is not written (")
    assert warnings[0].endswith(f"; ippo-report {folder} writes it")


def test_urgent_end_writes_no_large_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = replace(load_config().tracker, report=True)
    folder = write_run(tmp_path / "run", iterations=2, files=1, episodes_per_file=1)
    monkeypatch.setattr(process, "QUICK_BYTES", 1000)
    write_run_report(folder, tracker, is_urgent=True)
    assert not (folder / "report.html").exists()
    write_run_report(folder, tracker)
    assert (folder / "report.html").exists()
