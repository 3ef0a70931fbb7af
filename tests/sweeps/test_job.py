"""A job of a sweep as a SLURM job: it is requeued after it saved, on a signal or before its time limit."""

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
    """A folder with a sweep and a fake `scontrol`, in the environment of a submitit job."""
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
    """Train a job whose single rank runs the shell commands; return its row and the calls of `scontrol`."""
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
def test_saved_job_is_requeued(job: Path, rank: str) -> None:
    row, queued = left(job, rank)
    assert queued == ["requeue 7"]
    assert (row.state, row.exit_code, row.slurm) == ("waiting", 75, "7")


def test_only_task_of_array_is_requeued(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")  # one task has the job id of the array
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    row, queued = left(job, "exit 75")
    assert queued == ["requeue 7_3"]
    assert row.slurm == "7_3"


@pytest.mark.parametrize(
    ("rank", "state", "code"),
    [
        ("kill -TERM $PPID; sleep 0.2; exit 75", "preempted", 75),  # SIGTERM means that the job must end
        ("exit 12", "failed", 12),
        ("exit 0", "done", 0),
    ],
)
def test_terminated_or_finished_job_is_not_requeued(job: Path, rank: str, state: str, code: int) -> None:
    row, queued = left(job, rank)
    assert queued == []
    assert (row.state, row.exit_code) == (state, code)


def test_job_is_preempted_if_requeue_fails(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job / "refuses").touch()
    row, _ = left(job, "exit 75")
    assert (row.state, row.error) == ("preempted", "SLURM could not requeue its job")
    (job / "refuses").unlink()
    monkeypatch.setenv("IPPO_MAX_REQUEUES", "3")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    row, queued = left(job, "exit 75")
    assert (row.state, row.error, queued) == ("preempted", None, [])


def test_queued_job_of_older_attempt_exits(job: Path) -> None:
    (job / "sweep" / "1" / "checkpoints").mkdir(parents=True)
    start_attempt(job / "sweep")  # the sweep was resumed after this job was submitted
    row, _ = left(job, "exit 12")
    assert row.state == "waiting"
    assert [path.name for path in (job / "sweep").glob("1*")] == ["1"]


@pytest.mark.parametrize(("state", "refused"), [("RUNNING", True), ("PENDING", False), ("", False)])
def test_job_running_in_slurm_is_not_restarted(job: Path, state: str, refused: bool) -> None:
    (job / "squeue").write_text(f"#!/bin/sh\necho {'7 ' + state if state else ''}\n")
    (job / "squeue").chmod(0o755)
    row = JobRow(1, ["seed=1"], "1", "running", slurm="7")
    with pytest.raises(ResumeError, match="is being trained by SLURM job 7; ") if refused else nullcontext():
        prepare_resume(job / "sweep", row)


@pytest.mark.parametrize(("max_parallel", "share"), [(4, 2), (2, 4), (1, None)])
def test_unstarted_job_of_resumed_sweep_gets_new_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_parallel: int, share: int | None
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    row = JobRow(1, ["seed=1", "launch.threads=3"], "1", threads=3)
    begun = prepare_resume(tmp_path, row)
    plain = copy.deepcopy(composed(("seed=1",)))
    apply_sweep_settings(
        GridSweepConfig(kind=SweepKind.grid, max_parallel=max_parallel), row, plain, build_config(plain), begun=begun
    )
    assert (row.threads, plain["launch"]["threads"]) == (share, share)
    assert row.overrides == ["seed=1", *([f"launch.threads={share}"] if share else [])]


def test_started_job_keeps_threads(tmp_path: Path) -> None:
    original = JobRow(1, ["seed=1", "launch.threads=4"], "1", threads=4)
    assert not prepare_resume(tmp_path, typed := JobRow(1, ["launch.threads=4"], "1"))
    assert typed.overrides == ["launch.threads=4"]
    checkpoint = tmp_path / "1" / "checkpoints" / "step_00000001"
    checkpoint.mkdir(parents=True)
    assert not prepare_resume(tmp_path, row := copy.deepcopy(original))  # an incomplete checkpoint
    assert (row.overrides, row.threads) == (["seed=1"], None)
    (checkpoint / "manifest.json").touch()
    assert prepare_resume(tmp_path, row := copy.deepcopy(original))
    assert row == original
