"""Folders that a comparison refuses, and errors that end one whose jobs still train."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ippo_cli.config.errors import ConfigError, ResumeError, StorageError
from ippo_cli.controls.arms import ControlPlan
from ippo_cli.controls.compare_arms import ControlSearch, check_folder
from ippo_cli.controls.settings import Differences
from ippo_cli.runs.folder import lock_folder
from ippo_cli.sweeps import folder as sweep_folder
from ippo_cli.sweeps.folder import JobRow, create_sweep_file, set_state
from ippo_cli.sweeps.job import SweepContext
from ippo_cli.sweeps.pool import JobPool
from ippo_cli.sweeps.search import IndependentJobs, run_search

PLAN = ControlPlan(
    team=("task=signalling",),
    arms={"shared_policy": ("team=shared_policy",)},
    refused={},
    of_sweep=(),
    search_paths=(),
    metric="sampled/score",
    score_range=(0.0, 1.0),
    differences=Differences.bounded,
    first_seed=3,
    seeds=12,
    alpha=0.1,
)


def test_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"controls.to=.*/folder cannot be created: .*/file is a file"):
        check_folder(tmp_path / "file" / "folder")


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(ResumeError, match="running in another process"):
        check_folder(tmp_path)


@pytest.mark.parametrize("score", [1.5, float("nan")])
def test_first_evaluation_out_of_range_ends_the_comparison(tmp_path: Path, score: float) -> None:
    """Before a run ends; NaN is of no scored row, and in no range."""
    row = JobRow(job=1, overrides=[], folder="team-3", state="running")
    (tmp_path / "team-3").mkdir()
    (tmp_path / "controls.json").write_text("{}")
    known = {"state": "running", "evaluation": {"first": {"iteration": 0, "score": score}}}
    (tmp_path / "team-3" / "run.json").write_text(json.dumps(known))
    search = ControlSearch(PLAN, max_parallel=1)
    if score == score:
        with pytest.raises(ConfigError, match=r"controls.range=\[0,1\] does not contain the score 1.5 of team-3"):
            search.new_rows(tmp_path, [row])
    else:
        assert search.new_rows(tmp_path, [row]) == []


class FailingSearch(IndependentJobs):
    """Fails as soon as a job runs."""

    total = 1

    def __init__(self, error: Exception) -> None:
        self._error = error

    def new_rows(self, folder: Path, rows: Sequence[JobRow]) -> list[JobRow]:
        if rows[0].state == "running":
            raise self._error
        return []


@pytest.mark.parametrize("error", [ConfigError("key=1", "is wrong", "use 2"), KeyError("is wrong")])
def test_error_of_a_search_stops_running_jobs(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = JobRow(job=1, overrides=[], folder="a")
    create_sweep_file(tmp_path, [], [row])
    started: list[subprocess.Popen[bytes]] = []

    def start(pool: JobPool, row: JobRow, _: Any) -> None:
        started.append(subprocess.Popen(["sleep", "60"]))
        pool._slots[0].job, pool._slots[0].process = row.job, started[0]
        with sweep_folder.update_row(tmp_path, row.job) as saved_row:
            set_state(saved_row, "running", None, None)

    monkeypatch.setattr(JobPool, "start", start)
    context = SweepContext(tmp_path, "host", 1, (), (), False, 1, "attempt")
    with pytest.raises(type(error), match="is wrong"):
        run_search(FailingSearch(error), context, 1, lambda _: {}, {1: {}})
    assert started[0].returncode == -signal.SIGTERM


def test_full_disk_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sweep_folder, "write_atomically", fail)
    with pytest.raises(StorageError, match="No space left"):
        create_sweep_file(tmp_path, [], [])
