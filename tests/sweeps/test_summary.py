"""`ippo-sweep`: means over seeds, states of jobs, and reports of running sweeps."""

from __future__ import annotations

import csv
import io
import json
import time
from datetime import datetime
from pathlib import Path

import pytest

from ippo_cli.cli import sweep_report
from ippo_cli.config.errors import ConfigError
from ippo_cli.runs.folder import lock_folder
from ippo_cli.runs.intervals import mean_interval, t_quantile
from ippo_cli.sweeps.folder import JobRow, create_sweep_file
from ippo_cli.sweeps.plot import can_draw
from ippo_cli.sweeps.summary import summarize_sweep, to_json_data


def job(folder: Path, scores: list[float], state: str = "done") -> None:
    """Write the files of a run with a held-out score after each iteration."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("task:\n  primary_metric: sampled/score\n")
    lines = [json.dumps({"iteration": at, "eval/sampled/score": score}) for at, score in enumerate(scores)]
    (folder / "metrics.jsonl").write_text(
        "\n".join(lines) + '\n{"iteration": 99, "eval/sam'
    )  # the last row is incomplete
    entries = {"first": scores[0], "best": max(scores), "last": scores[-1]}
    run = {
        "state": state,
        "iterations": len(scores) - 1,
        "evaluation": {name: {"iteration": 0, "score": score} for name, score in entries.items()},
    }
    (folder / "run.json").write_text(json.dumps(run))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two configurations with three seeds each; in the second, one job failed and one never started."""
    overrides = [["num_iterations=2", f"lr={lr}", f"seed={seed}"] for lr in (1, 2) for seed in (1, 2, 3)]
    states = ["done", "done", "done", "failed", "done", "waiting"]
    rows = [JobRow(n, texts, str(n), state) for n, (texts, state) in enumerate(zip(overrides, states, strict=True), 1)]
    rows[3].error = "losses were\nnot finite"
    create_sweep_file(tmp_path, ["lr=1,2", "seed=1,2,3"], rows)
    for number, scores in ((1, [0.1, 0.9, 0.4]), (2, [0.1, 0.5, 0.5]), (3, [0.1, 0.6, 0.6]), (5, [0.1, 0.2, 0.9])):
        job(tmp_path / str(number), scores)
    job(tmp_path / "4", [0.1, 0.2], "failed")
    return tmp_path


def test_jobs_grouped_by_configuration(sweep: Path) -> None:
    best, other = summarize_sweep(sweep).configurations
    assert (best.overrides, other.overrides) == (("lr=2",), ("lr=1",))
    assert other.state_counts == {"done": 3}
    last = other.mean_score("last")
    assert last is not None
    # 0.4, 0.5, 0.6 have standard deviation 0.1; the t-quantile for two degrees of freedom is 4.303.
    assert (last.count, last.mean) == (3, pytest.approx(0.5))
    assert last.high == pytest.approx(0.5 + 4.303 * 0.1 / 3**0.5, abs=1e-4)
    assert last.low == pytest.approx(0.5 - 4.303 * 0.1 / 3**0.5, abs=1e-4)
    assert other.mean_score("best") == mean_interval([0.9, 0.5, 0.6])


def test_means_exclude_unfinished_jobs(sweep: Path) -> None:
    best = summarize_sweep(sweep).configurations[0]
    assert best.state_counts == {"done": 1, "missing": 1, "failed": 1}
    assert best.mean_score("last") == mean_interval([0.9])
    assert mean_interval([0.9]).low is None  # type: ignore[union-attr]


def test_table_lists_failures_and_resume_command(sweep: Path) -> None:
    output = sweep_report.format_summary(summarize_sweep(sweep))
    assert "6 jobs: 4 done, 1 missing, 1 failed\n" in output
    assert "job 4: lr=2 seed=1: failed: losses were not finite" in output
    assert output.splitlines()[-1] == f"resume the missing jobs: ippo-train -m resume={sweep}"


def test_running_sweep_has_waiting_jobs(sweep: Path) -> None:
    with lock_folder(sweep):
        summary = summarize_sweep(sweep)
        output = sweep_report.format_summary(summary)
    assert summary.going_on
    assert "1 waiting" in output
    assert "the sweep is running" in output
    assert "resume the missing jobs" not in output


def test_pruned_job_excludes_later_scores(tmp_path: Path) -> None:
    create_sweep_file(tmp_path, [], [JobRow(1, ["a=1"], "1", "done"), JobRow(2, ["a=2"], "2", "pruned", pruned_at=1)])
    job(tmp_path / "1", [0.1, 0.5, 0.8])
    job(tmp_path / "2", [0.1, 0.2, 0.9], "preempted")
    pruned = summarize_sweep(tmp_path).jobs[1]
    assert (pruned.state, pruned.last, pruned.curve) == ("pruned", 0.2, ((0, 0.1), (1, 0.2)))


def test_job_without_process_is_missing(tmp_path: Path) -> None:
    row = JobRow(1, ["a=1"], "1", "running", host="elsewhere", pid=1)
    create_sweep_file(tmp_path, [], [row, JobRow(2, ["a=2"], "2", "running")])
    assert [job.state for job in summarize_sweep(tmp_path).jobs] == ["running", "missing"]


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a sweep with one job that SLURM runs as task 0 of array 76; this machine has no SLURM."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin-without-slurm")
    row = JobRow(1, ["a=1"], "1", "running", host="elsewhere", pid=1, slurm="76_0", since=at("10:00:00"))
    create_sweep_file(tmp_path, [], [row, JobRow(2, ["a=2"], "2", "done")])
    return tmp_path


def at(clock: str) -> float:
    return datetime.fromisoformat(f"2030-01-01T{clock}").timestamp()


def written(folder: Path, job: str, *lines: str) -> None:
    output = folder / ".submitit" / job
    output.mkdir(parents=True, exist_ok=True)
    (output / f"{job}_0_log.err").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("job", "line", "state"),
    [
        (
            "76_0",
            "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2030-01-01T10:05:00 DUE TO NODE FAILURE, SEE ... ***",
            "missing",
        ),
        ("76_0", "slurmstepd-n1: error: *** STEP 77.0 ON n1 CANCELLED AT 2030-01-01T10:00:00 ***", "missing"),
        (
            "76_0",
            "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2030-01-01T09:59:00 DUE TO PREEMPTION ***",
            "running",
        ),
        ("76_1", "slurmstepd: error: *** JOB 76 ON n1 CANCELLED AT 2030-01-01T10:05:00 ***", "running"),
    ],
    ids=["node failure", "same second as the start", "before the restart", "another job"],
)
def test_slurm_notice_marks_job_missing(submitted: Path, job: str, line: str, state: str) -> None:
    written(submitted, job, "[1/2] a line of its own", line, "srun: error: n1: task 0: Killed")
    summary = summarize_sweep(submitted)
    assert [job.state for job in summary.jobs] == [state, "done"]
    go_on = f"resume the missing jobs: ippo-train -m resume={submitted}"
    assert (sweep_report.format_summary(summary).splitlines()[-1] == go_on) == (state == "missing")


def test_overdue_job_is_missing(submitted: Path) -> None:
    for until, state in ((time.time() - 60, "running"), (time.time() - 3600, "missing")):
        row = JobRow(1, ["a=1"], "1", "running", host="elsewhere", pid=1, slurm="76_0", since=1.0, until=until)
        create_sweep_file(submitted, [], [row])
        assert [job.state for job in summarize_sweep(submitted).jobs] == [state]


@pytest.mark.parametrize(
    ("squeue", "state"),
    [
        ("echo 76_0 RUNNING", "running"),
        ("echo 76_0 PENDING", "waiting"),  # requeued, for example after a node failure
        ("exit 0", "missing"),
        ("exit 1", "running"),  # squeue fails: the job may still run
    ],
)
def test_job_state_from_squeue(submitted: Path, squeue: str, state: str) -> None:
    (submitted / "squeue").write_text(f'#!/bin/sh\n[ "$3" = --jobs=76_0,76_0 ] || exit 2\n{squeue}\n')
    (submitted / "squeue").chmod(0o755)
    assert [job.state for job in summarize_sweep(submitted).jobs] == [state, "done"]


def test_report_of_sweep_waiting_for_missing_job(submitted: Path) -> None:
    written(submitted, "76_0", "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2030-01-01T10:05:00 ***")
    with lock_folder(submitted):
        output = sweep_report.format_summary(summarize_sweep(submitted)).splitlines()
    assert output[-2] == "job 1 has no process, and the sweep still waits: stop it with Ctrl-C twice, then resume it"
    assert output[-1] == f"resume the missing jobs: ippo-train -m resume={submitted}"


def test_summary_of_runs_without_sweep(tmp_path: Path) -> None:
    for seed, scores in ((1, [0.0, 0.2]), (2, [0.0, 0.4])):
        job(tmp_path / f"2026-{seed}", scores)
        texts = ["algorithm=grpo", f"seed={seed}", "hydra.searchpath=[x]"]
        (tmp_path / f"2026-{seed}" / "overrides.json").write_text(json.dumps(texts))
    summary = summarize_sweep(tmp_path)
    [group] = summary.configurations
    assert (group.overrides, group.mean_score("last")) == ((), mean_interval([0.2, 0.4]))
    assert summary.command is None


def test_repeated_seed_counts_once(tmp_path: Path) -> None:
    for number, (texts, last) in enumerate((("seed=1", 0.2), ("seed=2", 0.4), ("seed=1", 0.3)), 1):
        job(tmp_path / f"2026-{number}", [0.0, last])
        (tmp_path / f"2026-{number}" / "overrides.json").write_text(json.dumps([texts]))
    [group] = summarize_sweep(tmp_path).configurations
    assert group.mean_score("last") == mean_interval([0.3, 0.4])  # the newest run of seed 1
    assert group.state_counts == {"done": 3}
    for number in (1, 2, 3):
        (tmp_path / f"2026-{number}" / "overrides.json").write_text("[]")  # all use the default seed
    [group] = summarize_sweep(tmp_path).configurations
    assert group.mean_score("last") == mean_interval([0.3])


def test_assigned_threads_do_not_split_configuration(tmp_path: Path) -> None:
    texts = [["lr=1", f"seed={seed}", f"launch.threads={seed}"] for seed in (1, 2)]
    rows = [JobRow(seed, texts[seed - 1], str(seed), "done", threads=seed) for seed in (1, 2)]
    create_sweep_file(
        tmp_path, ["lr=1", "seed=1,2", "sweep.max_parallel=2"], rows
    )  # resumed with another sweep.max_parallel
    job(tmp_path / "1", [0.0, 0.2])
    job(tmp_path / "2", [0.0, 0.4])
    [group] = summarize_sweep(tmp_path).configurations
    assert (group.overrides, group.mean_score("last")) == ((), mean_interval([0.2, 0.4]))
    rows = [JobRow(seed, texts[seed - 1], str(seed), "done") for seed in (1, 2)]
    create_sweep_file(tmp_path, ["lr=1", "seed=1,2", "launch.threads=1,2"], rows)  # typed: part of the configuration
    assert len(summarize_sweep(tmp_path).configurations) == 2


def test_report_files(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file.name for file in sweep.iterdir()}
    sweep_report.write_report([str(sweep), f"to={sweep / 'report'}"])
    assert {file.name for file in sweep.iterdir()} - before == {"report"}
    data = json.loads((sweep / "report" / "summary.json").read_text())
    assert data == json.loads(json.dumps(to_json_data(summarize_sweep(sweep))))
    assert data["configurations"][1]["last"]["n"] == 3
    assert data["go_on_with"] == f"ippo-train -m resume={sweep}"
    lines = list(csv.DictReader(io.StringIO((sweep / "report" / "summary.csv").read_text())))
    assert [(line["overrides"], line["n"], line["states"]) for line in lines] == [
        ("lr=2", "1", "done:1 missing:1 failed:1"),
        ("lr=1", "3", "done:3"),
    ]
    has_picture = (sweep / "report" / "summary.png").is_file()
    assert has_picture == can_draw()
    assert has_picture != ("matplotlib is not installed" in capsys.readouterr().out)


def test_invalid_report_arguments_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"contains neither sweep\.json nor runs"):
        sweep_report.write_report([str(tmp_path)])
    with pytest.raises(ConfigError, match="is not a folder"):
        sweep_report.write_report([str(tmp_path / "x")])
    with pytest.raises(ConfigError, match="is not an option of ippo-sweep"):
        sweep_report.write_report([str(tmp_path), "from=x"])


def test_t_quantiles() -> None:
    assert [t_quantile(1), t_quantile(2), t_quantile(30)] == pytest.approx([12.7062, 4.3027, 2.0423], abs=1e-4)
    assert t_quantile(200) == pytest.approx(t_quantile(201), rel=1e-4), "exact, and the expansion"
    assert t_quantile(10**6) == pytest.approx(1.96, abs=1e-3)
    assert [t_quantile(1, 20), t_quantile(7, 20)] == pytest.approx([254.647, 4.59464], rel=1e-4)
