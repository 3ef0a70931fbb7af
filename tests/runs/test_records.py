"""Reading of run folders: finished, running, interrupted and damaged ones."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ippo_cli.config.errors import ResumeError
from ippo_cli.runs.folder import lock_folder
from ippo_cli.runs.records import RunRecord, find_runs


def write_run(folder: Path, state: str = "done") -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"state": state, "iterations": 2}))
    (folder / "config.yaml").write_text("task: {primary_metric: greedy/exact, agents: {low: {}, high: {}}}\n")
    rows = [{"iteration": 1, "low/rollout/sampler_gap": None}, {"iteration": 2, "low/score/mean": 0.5}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"iteration": 3, "lo')
    (folder / "samples").mkdir()
    for name in ("train_00000020", "eval_00000000", "eval_00000020"):
        (folder / "samples" / f"{name}.jsonl").write_text('{"index": 1}\n{"index": 2}\n')
    return folder


def test_read_files_of_a_run(tmp_path: Path):
    run = RunRecord(write_run(tmp_path / "a"))
    assert (run.status, run.agents, run.primary_metric) == ("done", ["low", "high"], "greedy/exact")
    assert [(file.iteration, file.mode) for file in run.sample_files] == [(0, "eval"), (20, "train"), (20, "eval")]
    assert [episode["index"] for episode in run.sample_files[0].episodes()] == [1, 2]


def test_metrics_have_present_names_and_end_at_a_cut_line(tmp_path: Path):
    rows = RunRecord(write_run(tmp_path / "a")).metrics
    assert [row["iteration"] for row in rows] == [1, 2]
    assert math.isnan(rows[0]["low/rollout/prob_diff/sampler"])


def test_a_run_without_process_and_final_state_is_interrupted(tmp_path: Path):
    folder = write_run(tmp_path / "a", "running")
    assert RunRecord(folder).status == "interrupted"
    with lock_folder(folder):
        assert RunRecord(folder).status == "running"


def test_missing_files_are_empty(tmp_path: Path):
    (tmp_path / "run.json").write_text('{"state": "failed"}')
    run = RunRecord(tmp_path)
    assert (run.config, run.metrics, run.commands, run.environment, run.agents) == ({}, [], [], {}, [])


def test_a_folder_without_state_is_refused(tmp_path: Path):
    with pytest.raises(ResumeError, match=r"not a run's folder"):
        _ = RunRecord(tmp_path).state


def test_find_runs_below_a_folder(tmp_path: Path):
    first = write_run(tmp_path / "default" / "20260102-000000-aaaaaa")
    second = write_run(tmp_path / "other" / "multirun-1" / "1" / "20260103-000000-bbbbbb")
    write_run(first / "samples" / "hidden")
    assert [run.folder for run in find_runs(tmp_path)] == [first, second]
    assert [run.folder for run in find_runs(first)] == [first]
