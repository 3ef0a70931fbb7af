"""A sweep's job as a job of SLURM: asked to leave or by itself, it is put back into the queue when it has saved."""

from __future__ import annotations

import copy
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from small import SMALL, composed

from ippo_cli.compose.load import build_config
from ippo_cli.config.errors import ResumeError
from ippo_cli.config.schema import GridSweepConfig, SweepKind
from ippo_cli.sweeps.folder import JobRow, create_sweep_file, read_rows, start_attempt
from ippo_cli.sweeps.job import SweepContext, prepare_resume, train_row
from ippo_cli.sweeps.kinds import apply_sweep_settings

SCONTROL = '#!/bin/sh\n[ ! -e refuses ] || exit 1\necho "$@" >> queued\n'


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a sweep, beside SLURM's command and a job in which submitit has called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1893456000")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "sweep").mkdir()
    create_sweep_file(tmp_path / "sweep", [], [JobRow(1, ["seed=1"], "1")])
    return tmp_path


def left(job: Path, rank: str) -> tuple[JobRow, list[str]]:
    """The row of a job whose one rank does this, and what was put back into the queue."""
    (job / "python").write_text(f"#!/bin/sh\n{rank}\n")
    (job / "python").chmod(0o755)
    this = SweepContext(job / "sweep", "submitter", 0, ("ippo-train",), (), False, 1)
    try:
        train_row(this, JobRow(1, ["seed=1"], "1"), lambda: copy.deepcopy(composed(SMALL)))
        code = None
    except SystemExit as leaving:
        code = leaving.code
    queued = (job / "queued").read_text().splitlines() if (job / "queued").exists() else []
    assert code == (75 if queued else None)  # without a result submitit calls again
    return read_rows(job / "sweep")[0], queued


@pytest.mark.parametrize("rank", ["exit 75", "kill -USR2 $PPID; sleep 0.2; exit 75"], ids=["by itself", "asked"])
def test_a_job_that_has_saved_before_its_time_limit_is_queued_again_and_waits(job: Path, rank: str) -> None:
    row, queued = left(job, rank)
    assert queued == ["requeue 7"]
    assert (row.state, row.exit_code, row.slurm) == ("waiting", 75, "7")


def test_of_an_array_the_task_alone_is_queued_again(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")  # the number of one task is that of the array
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    row, queued = left(job, "exit 75")
    assert queued == ["requeue 7_3"]
    assert row.slurm == "7_3"


@pytest.mark.parametrize(
    ("rank", "state", "code"),
    [
        ("kill -TERM $PPID; sleep 0.2; exit 75", "preempted", 75),  # whoever sent that wants it to end
        ("exit 12", "failed", 12),
        ("exit 0", "done", 0),
    ],
)
def test_a_job_that_is_to_end_or_has_is_not_queued_again(job: Path, rank: str, state: str, code: int) -> None:
    row, queued = left(job, rank)
    assert queued == []
    assert (row.state, row.exit_code) == (state, code)


def test_a_job_that_may_not_be_queued_again_is_preempted(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job / "refuses").touch()
    row, _ = left(job, "exit 75")
    assert (row.state, row.error) == ("preempted", "its job could not be put back into the queue")
    (job / "refuses").unlink()
    monkeypatch.setenv("IPPO_MAX_REQUEUES", "3")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    row, queued = left(job, "exit 75")
    assert (row.state, row.error, queued) == ("preempted", None, [])


def test_a_job_that_an_earlier_attempt_left_in_the_queue_leaves_its_run_to_the_newest(job: Path) -> None:
    (job / "sweep" / "1" / "checkpoints").mkdir(parents=True)
    start_attempt(job / "sweep")  # gone on with, since this one was submitted
    row, _ = left(job, "exit 12")
    assert row.state == "waiting"
    assert [path.name for path in (job / "sweep").glob("1*")] == ["1"]


@pytest.mark.parametrize(("state", "refused"), [("RUNNING", True), ("PENDING", False), ("", False)])
def test_a_job_that_slurm_still_runs_is_not_started_again(job: Path, state: str, refused: bool) -> None:
    (job / "squeue").write_text(f"#!/bin/sh\necho {'7 ' + state if state else ''}\n")
    (job / "squeue").chmod(0o755)
    row = JobRow(1, ["seed=1"], "1", "running", slurm="7")
    with pytest.raises(ResumeError, match="is trained by SLURM's job 7; ") if refused else nullcontext():
        prepare_resume(job / "sweep", row)


@pytest.mark.parametrize(("at_once", "share"), [(4, 2), (2, 4), (1, None)])
def test_a_job_that_begins_when_a_sweep_goes_on_gets_the_share_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, share: int | None
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    row = JobRow(1, ["seed=1", "launch.threads=3"], "1", threads=3)
    begun = prepare_resume(tmp_path, row)
    plain = copy.deepcopy(composed(("seed=1",)))
    apply_sweep_settings(
        GridSweepConfig(kind=SweepKind.grid, at_once=at_once), row, plain, build_config(plain), begun=begun
    )
    assert (row.threads, plain["launch"]["threads"]) == (share, share)
    assert row.overrides == ["seed=1", *([f"launch.threads={share}"] if share else [])]


def test_a_job_keeps_its_share_of_the_cores_once_it_has_begun(tmp_path: Path) -> None:
    given = JobRow(1, ["seed=1", "launch.threads=4"], "1", threads=4)
    assert not prepare_resume(tmp_path, typed := JobRow(1, ["launch.threads=4"], "1"))
    assert typed.overrides == ["launch.threads=4"]
    checkpoint = tmp_path / "1" / "checkpoints" / "step_00000001"
    checkpoint.mkdir(parents=True)
    assert not prepare_resume(tmp_path, row := copy.deepcopy(given))  # half of one
    assert (row.overrides, row.threads) == (["seed=1"], None)
    (checkpoint / "manifest.json").touch()
    assert prepare_resume(tmp_path, row := copy.deepcopy(given))
    assert row == given
