"""`hydra/launcher=submitit_slurm`: each job of a sweep is a SLURM job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import LIMIT_S, Cluster, wait_until
from small import SMALL, rows

pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the extra `slurm` is not installed")

REWARD = """
import os, time

def good(examples, responses):
    time.sleep(0.5 * os.path.exists("slow"))
    return {"team": [1.0] * len(examples)}

other = third = good

def bad(examples, responses):
    if os.path.exists("broken"):
        raise ValueError("broken on purpose")
    return good(examples, responses)
"""
LAUNCHER = ("hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=30", "hydra.launcher.cpus_per_task=1")


def start_sweep(cluster: Cluster, folder: Path, *overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ippo_cli.cli.train", "-m", *SMALL, *LAUNCHER, "evaluation.every=0", *overrides]
    (folder / "reward.py").write_text(REWARD)
    return subprocess.Popen(
        [*command, "reward=function", "resume=auto"],
        cwd=folder,
        env=cluster.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_exit(sweep: subprocess.Popen[str], code: int) -> str:
    output, _ = sweep.communicate(timeout=LIMIT_S)
    assert sweep.returncode == code, output
    return output


def jobs(folder: Path) -> list[dict]:
    [file] = folder.glob("outputs/default/*/sweep.json")
    return json.loads(file.read_text())["jobs"]


@pytest.mark.slow
def test_failed_job_is_reported_and_rerun(cluster: Cluster, tmp_path: Path) -> None:
    functions = "reward.function=reward.py:good,reward.py:other,reward.py:bad,reward.py:third"
    (tmp_path / "broken").touch()
    output = wait_for_exit(start_sweep(cluster, tmp_path, functions, "num_iterations=1"), 12)
    assert "3 of 4 jobs are done" in output
    assert f"job 3 of 4: reward.function={tmp_path}/reward.py:bad: failed: " in " ".join(output.split())
    assert [job["state"] for job in jobs(tmp_path)] == ["done", "done", "failed", "done"]
    metrics = sorted(tmp_path.glob("outputs/default/*/*/metrics.jsonl"))
    before = {file: file.stat().st_mtime_ns for file in metrics if file.parent.name != "3"}
    assert len(before) == 3
    (tmp_path / "broken").unlink()
    output = wait_for_exit(start_sweep(cluster, tmp_path, functions, "num_iterations=1"), 0)
    assert "a sweep of 4 jobs, 3 of them done" in output
    assert [job["state"] for job in jobs(tmp_path)] == ["done"] * 4
    assert {file: file.stat().st_mtime_ns for file in before} == before


@pytest.mark.slow
def test_job_near_its_time_limit_is_requeued_and_resumes(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    sweep = start_sweep(cluster, tmp_path, "reward.function=reward.py:good", "num_iterations=5", "checkpoint.every=0")

    def has_two_iterations() -> bool:
        return any(
            len(file.read_text().splitlines()) >= 3 for file in tmp_path.glob("outputs/default/*/1/metrics.jsonl")
        )

    wait_until(has_two_iterations, lambda: str(sorted(tmp_path.rglob("*"))))
    number = str(jobs(tmp_path)[0]["slurm"])
    cluster.run("scancel", "--signal=USR2", number)  # as SLURM does before the limit
    cluster.wait_for(number, "PENDING", "COMPLETED", "FAILED", output=tmp_path / "none")
    assert cluster.fields(number)["Restarts"] == "1"
    assert jobs(tmp_path)[0]["state"] == "waiting"
    assert sweep.poll() is None
    (tmp_path / "slow").unlink()
    cluster.run("scontrol", "update", f"JobId={number}", "StartTime=now+5")  # see test_train.py
    wait_for_exit(sweep, 0)
    [run] = tmp_path.glob("outputs/default/*/1/")
    assert [row["iteration"] for row in rows(run)] == list(range(6))
    assert not list(run.parent.glob("*.attempt-*"))
    assert (run / "command.txt").read_text().count("\n") == 2
