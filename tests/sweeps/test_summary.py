"""`ippo-sweep`: seeds are averaged, what is missing is named, and a sweep that is going on can be read."""

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
from ippo_cli.sweeps.folder import JobRow, create_sweep_file
from ippo_cli.sweeps.plot import can_draw
from ippo_cli.sweeps.summary import mean_interval, summarize_sweep, t_quantile, to_json_data


def job(folder: Path, scores: list[float], state: str = "done") -> None:
    """A run's files, with a held-out score after each iteration."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("task:\n  primary_metric: sampled/score\n")
    lines = [json.dumps({"iteration": at, "eval/sampled/score": score}) for at, score in enumerate(scores)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"iteration": 99, "eval/sam')  # one is being written
    entries = {"first": scores[0], "best": max(scores), "last": scores[-1]}
    run = {
        "state": state,
        "iterations": len(scores) - 1,
        "evaluation": {name: {"iteration": 0, "score": score} for name, score in entries.items()},
    }
    (folder / "run.json").write_text(json.dumps(run))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two configurations of three seeds each; of the second one job failed, and one never began."""
    overrides = [["num_iterations=2", f"lr={lr}", f"seed={seed}"] for lr in (1, 2) for seed in (1, 2, 3)]
    states = ["done", "done", "done", "failed", "done", "waiting"]
    rows = [JobRow(n, texts, str(n), state) for n, (texts, state) in enumerate(zip(overrides, states, strict=True), 1)]
    rows[3].error = "losses were\nnot finite"
    create_sweep_file(tmp_path, ["lr=1,2", "seed=1,2,3"], rows)
    for number, scores in ((1, [0.1, 0.9, 0.4]), (2, [0.1, 0.5, 0.5]), (3, [0.1, 0.6, 0.6]), (5, [0.1, 0.2, 0.9])):
        job(tmp_path / str(number), scores)
    job(tmp_path / "4", [0.1, 0.2], "failed")
    return tmp_path


def test_jobs_that_differ_in_their_seed_alone_are_one_configuration(sweep: Path) -> None:
    best, other = summarize_sweep(sweep).configurations
    assert (best.overrides, other.overrides) == (("lr=2",), ("lr=1",))
    assert other.states == {"done": 3}
    last = other.mean("last")
    assert last is not None
    # Of 0.4, 0.5, 0.6: deviation 0.1, and Student's quantile for two degrees of freedom is 4.303.
    assert (last.count, last.mean) == (3, pytest.approx(0.5))
    assert last.high == pytest.approx(0.5 + 4.303 * 0.1 / 3**0.5)
    assert last.low == pytest.approx(0.5 - 4.303 * 0.1 / 3**0.5)
    assert other.mean("best") == mean_interval([0.9, 0.5, 0.6])


def test_of_jobs_that_have_not_ended_nothing_enters_a_mean(sweep: Path) -> None:
    best = summarize_sweep(sweep).configurations[0]
    assert best.states == {"done": 1, "missing": 1, "failed": 1}
    assert best.mean("last") == mean_interval([0.9])
    assert mean_interval([0.9]).low is None  # type: ignore[union-attr]


def test_the_table_names_failed_jobs_and_the_command_that_goes_on(sweep: Path) -> None:
    said = sweep_report.format_summary(summarize_sweep(sweep))
    assert "6 jobs: 4 done, 1 missing, 1 failed\n" in said
    assert "job 4: lr=2 seed=1: failed: losses were not finite" in said
    assert said.splitlines()[-1] == f"resume the missing jobs: ippo-train -m resume={sweep}"


def test_while_a_sweep_is_going_on_what_is_missing_waits(sweep: Path) -> None:
    with lock_folder(sweep):
        summary = summarize_sweep(sweep)
        said = sweep_report.format_summary(summary)
    assert summary.going_on
    assert "1 waiting" in said
    assert "the sweep is going on" in said
    assert "go on with" not in said


def test_a_job_that_was_pruned_is_what_it_was_when_that_was_decided(tmp_path: Path) -> None:
    create_sweep_file(tmp_path, [], [JobRow(1, ["a=1"], "1", "done"), JobRow(2, ["a=2"], "2", "pruned", pruned_at=1)])
    job(tmp_path / "1", [0.1, 0.5, 0.8])
    job(tmp_path / "2", [0.1, 0.2, 0.9], "preempted")
    pruned = summarize_sweep(tmp_path).jobs[1]
    assert (pruned.state, pruned.last, pruned.curve) == ("pruned", 0.2, ((0, 0.1), (1, 0.2)))


def test_a_job_whose_process_is_gone_is_missing(tmp_path: Path) -> None:
    row = JobRow(1, ["a=1"], "1", "running", host="elsewhere", pid=1)
    create_sweep_file(tmp_path, [], [row, JobRow(2, ["a=2"], "2", "running")])
    assert [job.state for job in summarize_sweep(tmp_path).jobs] == ["running", "missing"]


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a sweep whose only job SLURM runs as task 0 of array 76, on a machine without SLURM."""
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
    ids=["node failure", "in the second in which it began", "before it was started again", "another job"],
)
def test_a_job_that_slurm_ended_is_missing_where_only_its_files_can_say_so(
    submitted: Path, job: str, line: str, state: str
) -> None:
    written(submitted, job, "[1/2] a line of its own", line, "srun: error: n1: task 0: Killed")
    summary = summarize_sweep(submitted)
    assert [job.state for job in summary.jobs] == [state, "done"]
    go_on = f"resume the missing jobs: ippo-train -m resume={submitted}"
    assert (sweep_report.format_summary(summary).splitlines()[-1] == go_on) == (state == "missing")


def test_a_job_that_is_long_past_its_time_limit_is_missing(submitted: Path) -> None:
    for until, state in ((time.time() - 60, "running"), (time.time() - 3600, "missing")):
        row = JobRow(1, ["a=1"], "1", "running", host="elsewhere", pid=1, slurm="76_0", since=1.0, until=until)
        create_sweep_file(submitted, [], [row])
        assert [job.state for job in summarize_sweep(submitted).jobs] == [state]


@pytest.mark.parametrize(
    ("squeue", "state"),
    [
        ("echo 76_0 RUNNING", "running"),
        ("echo 76_0 PENDING", "waiting"),  # put back into the queue, as of a node that failed
        ("exit 0", "missing"),
        ("exit 1", "running"),  # nobody answers: that it is gone is not known
    ],
)
def test_a_job_of_slurm_is_what_its_queue_says(submitted: Path, squeue: str, state: str) -> None:
    (submitted / "squeue").write_text(f'#!/bin/sh\n[ "$3" = --jobs=76_0,76_0 ] || exit 2\n{squeue}\n')
    (submitted / "squeue").chmod(0o755)
    assert [job.state for job in summarize_sweep(submitted).jobs] == [state, "done"]


def test_a_sweep_that_waits_for_a_job_which_slurm_lost_is_to_be_ended_first(submitted: Path) -> None:
    written(submitted, "76_0", "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2030-01-01T10:05:00 ***")
    with lock_folder(submitted):
        said = sweep_report.format_summary(summarize_sweep(submitted)).splitlines()
    assert said[-2] == "job 1 is gone, and the sweep waits all the same: end it with Ctrl-C twice, then go on"
    assert said[-1] == f"resume the missing jobs: ippo-train -m resume={submitted}"


def test_the_runs_of_a_job_array_are_summarized_without_a_sweep(tmp_path: Path) -> None:
    for seed, scores in ((1, [0.0, 0.2]), (2, [0.0, 0.4])):
        job(tmp_path / f"2026-{seed}", scores)
        texts = ["algorithm=grpo", f"seed={seed}", "hydra.searchpath=[x]"]
        (tmp_path / f"2026-{seed}" / "overrides.json").write_text(json.dumps(texts))
    summary = summarize_sweep(tmp_path)
    [group] = summary.configurations
    assert (group.overrides, group.mean("last")) == ((), mean_interval([0.2, 0.4]))
    assert summary.command is None


def test_a_seed_that_was_trained_with_again_is_no_other_sample(tmp_path: Path) -> None:
    for number, (texts, last) in enumerate((("seed=1", 0.2), ("seed=2", 0.4), ("seed=1", 0.3)), 1):
        job(tmp_path / f"2026-{number}", [0.0, last])
        (tmp_path / f"2026-{number}" / "overrides.json").write_text(json.dumps([texts]))
    [group] = summarize_sweep(tmp_path).configurations
    assert group.mean("last") == mean_interval([0.3, 0.4])  # of the newest run of seed 1
    assert group.states == {"done": 3}
    for number in (1, 2, 3):
        (tmp_path / f"2026-{number}" / "overrides.json").write_text("[]")  # whose seed is always the same
    [group] = summarize_sweep(tmp_path).configurations
    assert group.mean("last") == mean_interval([0.3])


def test_jobs_that_were_given_other_shares_of_the_cores_are_one_configuration(tmp_path: Path) -> None:
    texts = [["lr=1", f"seed={seed}", f"launch.threads={seed}"] for seed in (1, 2)]
    rows = [JobRow(seed, texts[seed - 1], str(seed), "done", threads=seed) for seed in (1, 2)]
    create_sweep_file(tmp_path, ["lr=1", "seed=1,2", "sweep.at_once=2"], rows)  # it went on with another sweep.at_once
    job(tmp_path / "1", [0.0, 0.2])
    job(tmp_path / "2", [0.0, 0.4])
    [group] = summarize_sweep(tmp_path).configurations
    assert (group.overrides, group.mean("last")) == ((), mean_interval([0.2, 0.4]))
    rows = [JobRow(seed, texts[seed - 1], str(seed), "done") for seed in (1, 2)]
    create_sweep_file(tmp_path, ["lr=1", "seed=1,2", "launch.threads=1,2"], rows)  # typed: what is compared
    assert len(summarize_sweep(tmp_path).configurations) == 2


def test_the_report_is_written_as_data_and_as_a_picture(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = {file.name for file in sweep.iterdir()}
    sweep_report.write_report([str(sweep), f"to={sweep / 'report'}"])
    assert {file.name for file in sweep.iterdir()} - there == {"report"}
    data = json.loads((sweep / "report" / "summary.json").read_text())
    assert data == json.loads(json.dumps(to_json_data(summarize_sweep(sweep))))
    assert data["configurations"][1]["last"]["n"] == 3
    assert data["go_on_with"] == f"ippo-train -m resume={sweep}"
    lines = list(csv.DictReader(io.StringIO((sweep / "report" / "summary.csv").read_text())))
    assert [(line["overrides"], line["n"], line["states"]) for line in lines] == [
        ("lr=2", "1", "done:1 missing:1 failed:1"),
        ("lr=1", "3", "done:3"),
    ]
    drawn = (sweep / "report" / "summary.png").is_file()
    assert drawn == can_draw()
    assert drawn != ("matplotlib is not installed" in capsys.readouterr().out)


def test_what_is_no_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no sweep's folder, and has no runs"):
        sweep_report.write_report([str(tmp_path)])
    with pytest.raises(ConfigError, match="is no folder"):
        sweep_report.write_report([str(tmp_path / "x")])
    with pytest.raises(ConfigError, match="is no option of ippo-sweep"):
        sweep_report.write_report([str(tmp_path), "from=x"])


def test_quantiles_beyond_the_table_go_on_as_it_ends() -> None:
    assert [t_quantile(1), t_quantile(30)] == [12.706, 2.042]
    assert t_quantile(31) == pytest.approx(2.0395, abs=1e-4)
    assert t_quantile(10**6) == pytest.approx(1.96, abs=1e-3)
