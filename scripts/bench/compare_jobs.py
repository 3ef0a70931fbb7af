"""Records short jobs, and compares them with a later version of the code: a refactoring leaves them identical.

    .venv/bin/python scripts/bench/compare_jobs.py record FOLDER [JOB ...]
    .venv/bin/python scripts/bench/compare_jobs.py compare FOLDER [JOB ...]

Each job trains two iterations, and resumes for a third one. Compared are `metrics.jsonl` without measured times, and a
hash of the weights in the last checkpoint. Processors round differently: record and compare on one machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MEASURED = ("time/", "perf/", "memory/")
COMMON = (
    "actor.hidden_size=32",
    "actor.num_layers=1",
    "actor.num_heads=2",
    "actor.warm_start_steps=5",
    "actor.warm_start_batch_size=16",
    "rollout.buffer_size=16",
    "rollout.decode_batch_size=16",
    "evaluation.every=2",
    "checkpoint.every=1",
    "tracker.tensorboard=false",
    "tracker.report=false",
    "tracker.samples_every=0",
    "launch.threads=1",
)
SORTING = ("task.train_size=48", "task.eval_size=8")
JOBS: dict[str, tuple[str, ...]] = {
    "ippo": (*SORTING, "algorithm=ippo"),
    "ppo": (*SORTING, "algorithm=ppo", "critic=value_head", "actor.learning_rate=1e-3"),
    "grpo": (*SORTING, "algorithm=grpo", "rollout.num_generations=4"),
    "remax": (*SORTING, "algorithm=remax"),
    "happo": (*SORTING, "algorithm=happo"),
    "mappo": (*SORTING, "algorithm=mappo", "critic.popart_beta=0.9"),
    "vine": (*SORTING, "algorithm=vine_ppo", "algorithm.advantage_args.continuations=2", "rollout.num_generations=4"),
    "at_grpo": ("task=relay", "algorithm=at_grpo"),
    "hacpo": ("task=sorting_peers", *SORTING, "algorithm=hacpo", "rollout.num_generations=4"),
    "opponents": ("+experiment=self_play", "team.opponent_pool.every=1", "algorithm.mini_batch_size=16"),
    "lora": (*SORTING, "actor=tiny_lora", "team=shared_base", "algorithm=ppo"),
    "counterfactual": (
        *SORTING,
        "algorithm=ppo",
        "reward.credit_assignment=counterfactual",
        "reward.credit_alternatives=2",
    ),
    "refill": (
        *SORTING,
        "algorithm=dapo",
        "rollout.num_generations=4",
        "rollout.refill_rounds=2",
        "task.curriculum.band_low=0.1",
        "task.curriculum.band_high=0.9",
    ),
    "rae": ("task=relay", "algorithm=rae"),
    "ensemble": (*SORTING, "algorithm=ppo", "critic.ensemble=2", "algorithm.value_clip_range=null"),
}


def train(arguments: list[str]) -> None:
    """Run `ippo-train`. Raises `RuntimeError` with its output if it fails."""
    program = "import sys; from ippo_cli.cli.train import main; sys.argv[0] = 'ippo-train'; main()"
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env=dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""),
    )
    if ended.returncode:
        raise RuntimeError(f"{arguments}: exit code {ended.returncode}\n{ended.stdout[-2000:]}{ended.stderr[-3000:]}")


def run_job(name: str, root: Path) -> dict[str, object]:
    """Train, resume, and read the result."""
    train([*COMMON, *JOBS[name], "num_iterations=2", f"output_dir={root / name}", "name=job"])
    [folder] = (root / name / "job").iterdir()
    train([f"resume={folder}", "num_iterations=3"])
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in row.items() if not key.startswith(MEASURED)} for row in rows]
    weights = hashlib.sha256()
    newest = max((folder / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime)
    for file in sorted(newest.rglob("*.safetensors")):
        weights.update(file.name.encode() + file.read_bytes())
    return {"rows": kept, "weights": weights.hexdigest()}


def describe_difference(before: dict[str, object], after: dict[str, object]) -> str | None:
    """The first difference of two results; None if they are equal."""
    rows = list(zip(before["rows"], after["rows"], strict=False))  # type: ignore[call-overload]
    for number, (one, other) in enumerate(rows, start=1):
        for key in sorted(one.keys() | other.keys()):
            if json.dumps(one.get(key)) != json.dumps(other.get(key)):
                return f"line {number}: {key} was {one.get(key)}, is {other.get(key)}"
    if len(before["rows"]) != len(after["rows"]):  # type: ignore[arg-type]
        return "the number of lines differs"
    return None if before["weights"] == after["weights"] else "the weights differ"


def main() -> int:
    """Record or compare; the exit code is the number of jobs that differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("jobs", nargs="*", metavar="JOB")
    parser.add_argument("--parallel", type=int, default=2, help="jobs at a time")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    names = arguments.jobs or list(JOBS)
    different = 0
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(arguments.parallel) as pool:
        for name, result in zip(names, pool.map(lambda job: run_job(job, Path(root)), names), strict=True):
            file = arguments.folder / f"{name}.json"
            if arguments.action == "record":
                file.write_text(json.dumps(result, indent=1))
                print(f"{name}: recorded", flush=True)
                continue
            difference = describe_difference(json.loads(file.read_text()), result)
            different += difference is not None
            print(f"{name}: {difference or 'identical'}", flush=True)
    return different


if __name__ == "__main__":
    sys.exit(main())
