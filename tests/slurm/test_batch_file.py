"""`scripts/slurm/train.sbatch` with fake SLURM commands that log their arguments."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

BATCH_FILE = Path(__file__).parents[2] / "scripts" / "slurm" / "train.sbatch"
FAKE_COMMAND = '#!/bin/sh\necho "$(basename "$0") $@" >> "$LOG"\n'
ARRAY = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.mark.parametrize(
    ("code", "variables", "requeued"),
    [
        (75, {}, "scontrol requeue 7"),
        (138, {}, "scontrol requeue 7"),
        # The job id alone would requeue all tasks of the array.
        (75, ARRAY, "scontrol requeue 7_3"),
        (75, {"SLURM_RESTART_COUNT": "100"}, None),
        (12, {}, None),
        (0, ARRAY, None),
    ],
)
def test_preempted_job_requeues_only_itself(
    tmp_path: Path, code: int, variables: dict[str, str], requeued: str | None
) -> None:
    commands, log = tmp_path / "bin", tmp_path / "log"
    commands.mkdir()
    for name, after in (("scontrol", ""), ("srun", f"exit {code}\n")):
        (commands / name).write_text(FAKE_COMMAND + after)
        (commands / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_SUBMIT_DIR": str(tmp_path), "LOG": str(log)}
    done = subprocess.run(
        ["bash", str(BATCH_FILE), "seed=%a"],
        env={"PATH": f"{commands}:{os.environ['PATH']}", "IPPO_TRAIN": "program"} | job | variables,
        capture_output=True,
    )
    assert done.returncode == (75 if code == 138 else code)
    lines = log.read_text().splitlines()
    assert [line for line in lines if "requeue" in line] == ([] if requeued is None else [requeued])
    [run] = [line for line in lines if line.startswith("srun")]
    assert run.endswith(f"program seed={variables.get('SLURM_ARRAY_TASK_ID', '%a')} resume=auto")
