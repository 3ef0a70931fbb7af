"""Writes `recorded/JOB.tar.xz`: a run's folder after one of two iterations, and the metrics of the run without a stop.

    .venv/bin/python tests/training/recorded/record.py FOLDER [JOB ...]

Later versions must resume, verify, report and evaluate these runs (`test_recorded_runs.py`). Do not record a job again
when a test of it fails: its users have such folders.
"""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts" / "bench"))
from compare_jobs import train

COMMON = (
    "task.train_size=16",
    "task.eval_size=4",
    "rollout.buffer_size=8",
    "rollout.decode_batch_size=8",
    "algorithm.mini_batch_size=8",
    "evaluation.every=1",
    "checkpoint.every=1",
    "tracker.tensorboard=false",
    "tracker.report=false",
    "launch.threads=1",
    "num_iterations=2",
)
TINY = (
    "actor.hidden_size=8",
    "actor.num_layers=1",
    "actor.num_heads=2",
    "actor.warm_start_steps=2",
    "actor.warm_start_batch_size=8",
)
JOBS: dict[str, tuple[str, ...]] = {
    "ppo": ("algorithm=ppo", "critic=value_head"),
    "happo_pool": (
        "algorithm=happo",
        "team.opponent_pool.every=1",
        "team.opponent_pool.size=2",
        "team.opponent_pool.share=0.5",
    ),
    "lora": ("actor=tiny_lora", "actor.rank=4", "team=shared_base", "algorithm=ppo"),
    "refill": (
        "algorithm=dapo",
        "rollout.num_generations=4",
        "rollout.refill_rounds=2",
        "task.curriculum.band_low=0.1",
        "task.curriculum.band_high=0.9",
    ),
    # With keys that are keys of `algorithm.advantage_args` now.
    "rae": ("algorithm=rae",),
    "at_grpo": ("algorithm=at_grpo", "algorithm.turn_groups.candidates=2"),
    "vine": ("algorithm=vine_ppo", "algorithm.monte_carlo.continuations=2", "rollout.num_generations=4"),
    "two_ranks": ("algorithm=ippo", "deepspeed=zero3", "launch.processes=2"),
}


def train_job(folder: Path, name: str, *overrides: str) -> Path:
    """Train in a folder; returns the run's folder."""
    train([*overrides, f"name={name}", f"output_dir={folder}"])
    [found] = (folder / name).iterdir()
    return found


def record_job(job: str, folder: Path) -> Path:
    """Train a job with and without a stop, and pack both; returns the archive."""
    folder.mkdir(parents=True, exist_ok=True)
    overrides = (*JOBS[job], *COMMON, *TINY)
    stopped = train_job(folder, "stopped", *overrides, "max_iterations_this_run=1")
    whole = train_job(folder, "whole", *overrides)
    archive = Path(__file__).parent / f"{job}.tar.xz"
    with tarfile.open(archive, "w:xz") as out:
        out.add(stopped, "run")
        out.add(whole / "metrics.jsonl", "uninterrupted.jsonl")
    return archive


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name in sys.argv[2:] or JOBS:
        print(record_job(name, root / name))
