"""`sweep.max_parallel`: parallel jobs get separate GPUs if there are enough."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from ippo_cli.sweeps import folder as sweep_folder
from ippo_cli.sweeps import pool as sweep_pool
from ippo_cli.sweeps.folder import JobRow
from ippo_cli.sweeps.job import SweepContext
from ippo_cli.sweeps.pool import JobPool, assign_devices, known_devices

WORKER = """#!/bin/sh
cat > /dev/null
echo "${CUDA_VISIBLE_DEVICES-all}" >> seen
while [ -e busy ]; do sleep 0.02; done
"""
UNIQUE = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-3/1/0", "GPU-2b")


def seen(folder: Path, monkeypatch: pytest.MonkeyPatch, *ranks: int) -> list[str]:
    """CUDA_VISIBLE_DEVICES of parallel jobs with these numbers of ranks, in the order in which they started."""
    monkeypatch.chdir(folder)
    (folder / "python").write_text(WORKER)
    (folder / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    (folder / "busy").touch()
    rows = [JobRow(job, [], str(job)) for job in range(1, len(ranks) + 1)]
    sweep_folder.create_sweep_file(folder, [], rows)
    pool = JobPool(SweepContext(folder, "here", os.getpid(), (), (), False, None), len(ranks))
    for begun, (row, processes) in enumerate(zip(rows, ranks, strict=True), 1):
        pool.start(row, {"launch": {"processes": processes}})
        until = time.monotonic() + 60
        while not (folder / "seen").exists() or (folder / "seen").read_text().count("\n") < begun:
            assert time.monotonic() < until
            time.sleep(0.01)
    (folder / "busy").unlink()
    while pool.running_jobs:
        pool.reap()
    return (folder / "seen").read_text().splitlines()


@pytest.mark.parametrize(
    ("visible", "ranks", "expected"),
    [
        ("0,1,2,3", (1, 1, 1), ["0", "1", "2"]),
        ("4,7", (1, 1, 1), ["4", "7", "4"]),  # fewer than jobs: in turn
        (",".join(UNIQUE), (1, 1), list(UNIQUE[:2])),
        ("0,1,2,3", (2, 1, 1), ["0,1", "2", "3"]),  # jobs with different numbers of ranks
        ("0,1,2", (2, 2), ["0,1", "0,2"]),
        ("0, 1", (1, 1), ["0", "1"]),
        ("3", (1, 1), ["3", "3"]),
        ("0,1", (2, 2), ["0,1", "0,1"]),
        ("", (1, 1), ["", ""]),
        ("2,-1,3", (1, 1), ["2,-1,3", "2,-1,3"]),  # CUDA sees only GPU 2
    ],
)
def test_parallel_jobs_get_separate_gpus(
    visible: str, ranks: tuple[int, ...], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert seen(tmp_path, monkeypatch, *ranks) == expected


def test_all_gpus_assigned_without_visible_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    for name in ("0000:1b:00.0", "0000:43:00.0"):
        (tmp_path / "gpus" / name).mkdir(parents=True)
    monkeypatch.setattr(sweep_pool, "GPU_DIR", tmp_path / "gpus")
    assert seen(tmp_path, monkeypatch, 1, 1) == ["0", "1"]
    monkeypatch.setattr(sweep_pool, "GPU_DIR", tmp_path / "none")
    assert known_devices({}) == []


def test_least_used_gpu_assigned() -> None:
    assert assign_devices(["0", "1", "2"], 1, {"0": 1, "2": 1}) == ("1",)
    assert assign_devices(["0", "1"], 1, {"0": 2, "1": 1}) == ("1",)
    assert assign_devices([], 1, {}) == ()
