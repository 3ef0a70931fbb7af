"""Files that a run writes, also over several processes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from disks import fill, mounted

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import StorageError
from ippo_cli.reporting.run_log import RunLog, RunState, read_previous_state
from ippo_cli.reporting.trackers import tensorboard_files


@pytest.fixture
def tracker():
    return replace(load_config().tracker, tensorboard=False)


def test_wall_seconds_include_earlier_processes(tmp_path: Path, tracker) -> None:
    run = RunLog(tmp_path, tracker, RunState())
    run.state.wall_seconds = 100.0  # value in a checkpoint
    run.log_row({"iteration": 3})
    output = json.loads((tmp_path / "run.json").read_text())
    assert 100.0 <= output["wall_seconds"] < 110.0
    assert output["iterations"] == 3
    again = RunLog(tmp_path, tracker, read_previous_state(tmp_path))
    again.finish("done")
    assert json.loads((tmp_path / "run.json").read_text())["wall_seconds"] >= output["wall_seconds"]


def test_resumed_run_keeps_its_state_until_checkpoint(tmp_path: Path, tracker) -> None:
    run = RunLog(tmp_path, tracker, RunState())
    run.record_evaluation(0, "sampled/score", {"sampled/score": 0.25})
    run.finish("failed", "disk full")
    known = read_previous_state(tmp_path)
    assert (known.state, known.error) == ("failed", None)
    assert known.evaluation["best"]["score"] == 0.25
    assert read_previous_state(tmp_path / "nowhere") == RunState()


def test_curves_of_abandoned_iterations_are_purged(tmp_path: Path, tracker) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    drawn = replace(tracker, tensorboard=True)
    for iterations in ((1, 2, 3), (2, 3)):  # stopped after 3, resumed from a checkpoint of 1
        run = RunLog(tmp_path, drawn, RunState())
        for iteration in iterations:
            run.log_row({"iteration": iteration, "time/iteration": 10.0 * len(iterations) + iteration})
        run.finish("done")
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("time/iteration")] == [(1, 31), (2, 22), (3, 23)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "1m") as folder:
        yield folder


def test_full_disk_keeps_pending_rows(small_disk: Path, tracker, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunLog(small_disk, tracker, RunState())
    run.log_row({"iteration": 1})
    before = run.durable_metrics_bytes()
    filler = fill(small_disk)
    (small_disk / "metrics.jsonl").write_bytes(b"{}\n" * 1365 + b"\n")  # its last block is also full
    before = run.durable_metrics_bytes()
    for iteration in (2, 3):
        run.log_row({"iteration": iteration})
        run.log_samples(f"train_{iteration}", [{"text": "a"}])
        assert run.durable_metrics_bytes() is None
        assert (small_disk / "metrics.jsonl").stat().st_size == before, "not half a row"
    output = capsys.readouterr().out.splitlines()
    assert [line.split(" cannot")[0].rsplit("/", 2)[-1] for line in output if "metrics" in line] == ["metrics.jsonl"]
    assert all(line.startswith("warning: ") and "No space left on device" in line for line in output)
    assert not [path for path in small_disk.rglob("*") if path.name.endswith(".tmp")]
    filler.unlink()
    run.log_row({"iteration": 4})
    written = [json.loads(line) for line in (small_disk / "metrics.jsonl").read_text().splitlines()[-3:]]
    assert [row["iteration"] for row in written] == [2, 3, 4]
    assert run.durable_metrics_bytes() == (small_disk / "metrics.jsonl").stat().st_size


@pytest.mark.parametrize("error", ["disk full", "disk full " * 1000])
def test_failed_state_is_written_on_full_disk(error: str, small_disk: Path, tracker) -> None:
    run = RunLog(small_disk, tracker, RunState())
    fill(small_disk)
    run.finish("failed", error)
    output = json.loads((small_disk / "run.json").read_text())
    assert (output["state"], output["error"]) == ("failed", error if len(error) < 100 else None)


def test_run_is_done_only_after_rows_are_written(small_disk: Path, tracker) -> None:
    run = RunLog(small_disk, tracker, RunState())
    filler = fill(small_disk)
    run.log_row({"iteration": 1})
    with pytest.raises(StorageError, match=r"its metrics\.jsonl could not be written"):
        run.finish("done")
    filler.unlink()
    run.finish("done")
    assert json.loads((small_disk / "metrics.jsonl").read_text())["iteration"] == 1


def test_failed_curves_do_not_lose_rows(
    small_disk: Path, tracker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunLog(small_disk, replace(tracker, tensorboard=True), RunState())
    run.log_row({"iteration": 1, "time/iteration": 1.0})
    filler = fill(small_disk)
    for iteration in range(2, 200):
        run.log_row({"iteration": iteration, "time/iteration": 1.0})
    output = capsys.readouterr()
    assert output.out.count("tb/ cannot be written (No space left on device") == 1
    assert output.err == ""
    monkeypatch.setattr(tensorboard_files, "MIN_FREE_BYTES", 1 << 14)
    filler.unlink()
    run.log_row({"iteration": 200, "time/iteration": 1.0})
    run.finish("done")
    assert len((small_disk / "metrics.jsonl").read_text().splitlines()) == 200
    assert len(list((small_disk / "tb").iterdir())) == 2


def test_any_score_is_better_than_nan(tmp_path: Path, tracker) -> None:
    for resumed in (False, True):
        run = RunLog(tmp_path, tracker, RunState())
        run.record_evaluation(0, "sampled/score", {"sampled/score": math.nan})
        assert "best" not in json.loads((tmp_path / "run.json").read_text())["evaluation"]
        if resumed:
            run = RunLog(tmp_path, tracker, read_previous_state(tmp_path))
        assert run.record_evaluation(1, "sampled/score", {"sampled/score": -1.0})
        assert not run.record_evaluation(2, "sampled/score", {"sampled/score": math.nan})
        assert run.state.evaluation["best"]["score"] == -1.0


def test_warnings_have_the_iteration_of_their_first_appearance(tmp_path: Path, tracker) -> None:
    run = RunLog(tmp_path, tracker, RunState())
    assert run.record_warnings({"early": "a"}) == ["a"]
    run.log_row({"iteration": 3})
    assert run.record_warnings({"early": "a", "late": "b"}) == ["b"]
    run.record_warnings({"next": "c"}, 4)
    again = read_previous_state(tmp_path)
    assert again.warning_iterations == {"early": 0, "late": 3, "next": 4}


def test_state_of_an_earlier_version_has_no_iterations_of_warnings(tmp_path: Path, tracker) -> None:
    RunLog(tmp_path, tracker, RunState(warnings={"early": "a"})).save_state()
    known = json.loads((tmp_path / "run.json").read_text())
    del known["warning_iterations"]
    (tmp_path / "run.json").write_text(json.dumps(known))
    again = read_previous_state(tmp_path)
    assert (again.warnings, again.warning_iterations) == ({"early": "a"}, {})
