"""The chain of hashes over a run's starts, rows and sample files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ippo_cli.config.schema import Console as Style
from ippo_cli.config.schema import TrackerConfig, TrackerKind
from ippo_cli.reporting.run_log import RunLog, RunState
from ippo_cli.runs.history import HISTORY, extend_chain, history_bytes, read_history


@pytest.fixture
def log(tmp_path: Path) -> RunLog:
    settings = {"callback": None, "console": Style.plain, "samples_every": 1, "samples": 1, "turns": 0}
    settings |= {"sample_tokens": 0, "report": False}
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    tracker = TrackerConfig(kind=TrackerKind.none, tensorboard=False, profile=False, **settings)
    return RunLog(tmp_path, tracker, RunState())


def add_iteration(log: RunLog, iteration: int) -> str:
    log.log_samples(f"train_{iteration:08d}", [{"index": iteration}])
    log.log_row({"iteration": iteration})
    return log.record_iteration(iteration)


def test_each_line_extends_the_chain(log: RunLog):
    log.record_start("", 0, {"threads": 1})
    newest = add_iteration(log, 1)
    chain = ""
    lines = read_history(log.folder)
    for line in lines:
        chain = extend_chain(chain, line.content)
        assert line.chain == chain
    assert chain == newest
    assert [*lines[1].content["files"]] == ["samples/train_00000001.jsonl"]


def test_a_resume_drops_the_lines_after_its_checkpoint(log: RunLog):
    log.record_start("", 0, {"threads": 1})
    saved = add_iteration(log, 1)
    add_iteration(log, 2)
    log.record_start(saved, 1, {"threads": 2})
    add_iteration(log, 2)
    lines = read_history(log.folder)
    assert [(line.iteration, line.is_start) for line in lines] == [(0, True), (1, False), (1, True), (2, False)]
    assert lines[2].chain == extend_chain(saved, lines[2].content)


def test_the_configuration_is_kept_only_if_it_changed(log: RunLog):
    saved = log.record_start("", 0, {})
    saved = log.record_start(saved, 0, {})
    (log.folder / "config.yaml").write_text("seed: 2\n")
    log.record_start(saved, 0, {})
    assert [line.content.get("config") for line in read_history(log.folder)] == ["seed: 1\n", None, "seed: 2\n"]


def test_a_checkpoint_of_an_earlier_version_starts_a_new_history(log: RunLog):
    log.record_start("", 0, {})
    log.record_start("", 4, {})
    assert [line.iteration for line in read_history(log.folder)] == [4]


def test_damaged_histories(log: RunLog):
    saved = log.record_start("", 0, {})
    file = log.folder / HISTORY
    assert history_bytes(log.folder, saved) == file.stat().st_size
    assert history_bytes(log.folder, "other") is None
    file.write_text(json.dumps({"iteration": 1}) + "\n")
    with pytest.raises(ValueError, match="line 1 is not a line of a history"):
        read_history(log.folder)
    log.record_start(saved, 1, {})  # keeps the damaged line, so that a verification finds it
    assert len(file.read_text().splitlines()) == 2


def test_a_full_disk_delays_the_history_with_its_checkpoint(log: RunLog):
    log.record_start("", 0, {})
    (log.folder / HISTORY).rename(log.folder / "kept")
    (log.folder / HISTORY).mkdir()  # cannot be written
    add_iteration(log, 1)
    assert log.durable_metrics_bytes() is None
    (log.folder / HISTORY).rmdir()
    (log.folder / "kept").rename(log.folder / HISTORY)
    assert log.durable_metrics_bytes() == (log.folder / "metrics.jsonl").stat().st_size
    assert [line.iteration for line in read_history(log.folder)] == [0, 1]


def test_a_resume_drops_rows_and_samples_of_later_iterations(log: RunLog):
    log.record_start("", 0, {})
    saved = add_iteration(log, 1)
    size = log.durable_metrics_bytes()
    log.log_samples("eval_00000001", [{"index": 0}])
    for iteration in (2, 3):
        add_iteration(log, iteration)
    log.log_samples("eval_00000003", [{"index": 0}])
    (log.folder / "samples" / "notes.txt").touch()
    assert size is not None
    log.drop_later_iterations(size, 1)
    log.record_start(saved, 1, {})
    log.log_row({"iteration": 2})  # now without samples
    log.record_iteration(2)
    assert sorted(path.name for path in (log.folder / "samples").iterdir()) == [
        "eval_00000001.jsonl",
        "notes.txt",
        "train_00000001.jsonl",
    ]
    assert read_history(log.folder)[-1].content["files"] == {}
