"""`scripts/slurm/train.sbatch` on two nodes: one run of two ranks, saved and requeued on preemption."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cluster import SCRIPTS, Cluster, wait_until
from small import SMALL, final_weights, rows

TWO_NODES = ("--nodes=2", "--cpus-per-task=1", str(SCRIPTS / "train.sbatch"))
REWARD = '''
import os, random, time

def reward(examples, responses):
    """Use the global random stream, which must be restored; sleep while `slow` exists."""
    time.sleep(0.5 * os.path.exists("slow"))
    counts = [len(set(low) & set(row["low"])) for low, row in zip(responses["low"], examples)]
    return {"team": [count + 0.1 * random.random() for count in counts]}
'''
JOB = (
    *SMALL,
    "num_iterations=6",
    "evaluation.every=0",
    "checkpoint.every=4",
    "deepspeed=zero2",
    "reward=function",
    "reward.function=reward.py:reward",
)


def submit_job(cluster: Cluster, folder: Path, *, slow: bool) -> int:
    folder.mkdir()
    (folder / "reward.py").write_text(REWARD)
    if slow:
        (folder / "slow").touch()
    return cluster.submit(folder, *TWO_NODES, *JOB)


def only_run(folder: Path) -> Path:
    [run] = folder.glob("outputs/default/*/")
    return run


@pytest.fixture(scope="module")
def reference(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an undisturbed job."""
    folder = tmp_path_factory.mktemp("slurm") / "reference"
    job = submit_job(cluster, folder, slow=False)
    cluster.wait_for(job, "COMPLETED", "FAILED", "CANCELLED", output=folder / "output")
    assert cluster.fields(job)["ExitCode"] == "0:0", (folder / "output").read_text()
    return folder


@pytest.mark.slow
def test_two_nodes_make_one_run_of_two_ranks(reference: Path) -> None:
    run = only_run(reference)
    assert json.loads((run / "run.json").read_text())["state"] == "done"
    assert [row["iteration"] for row in rows(run)] == list(range(7))
    manifest = json.loads((run / "checkpoints" / "step_00000006" / "manifest.json").read_text())
    assert "rng_rank_1.json" in manifest["files"]
    assert (reference / "output").read_text().count("2 processes") == 1


@pytest.mark.slow
def test_preempted_job_is_requeued_and_resumes_exactly(cluster: Cluster, reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "preempted"
    job = submit_job(cluster, folder, slow=True)
    output = folder / "output"

    def has_two_iterations() -> bool:
        return any(len(file.read_text().splitlines()) >= 3 for file in folder.glob("outputs/default/*/metrics.jsonl"))

    wait_until(has_two_iterations, lambda: output.read_text() if output.exists() else str(cluster.fields(job)))
    cluster.run("scancel", "--signal=USR1", str(job))
    cluster.wait_for(job, "PENDING", "COMPLETED", "FAILED", "CANCELLED", output=output)
    text_before = output.read_text()
    assert cluster.fields(job)["Restarts"] == "1", text_before
    run = only_run(folder)
    assert json.loads((run / "run.json").read_text())["state"] == "preempted"
    assert 2 < len(rows(run)) < 7
    assert "train.sbatch: preempted; requeued" in text_before
    (folder / "slow").unlink()
    # SLURM delays it by two minutes. Nodes reject a job that starts in the second in which it was requeued.
    cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now+5")
    cluster.wait_for(job, "COMPLETED", "FAILED", "CANCELLED", output=output)
    assert cluster.state(job) == "COMPLETED", output.read_text()
    assert only_run(folder) == run
    assert output.read_text().startswith(text_before)  # appended to
    assert f"{run.name}/checkpoints/step_" in output.read_text().split("resumed from ")[1]
    assert rows(run) == rows(only_run(reference))
    expected, found = final_weights(only_run(reference)), final_weights(run)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
