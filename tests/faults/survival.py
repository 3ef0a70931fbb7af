"""Helpers that stop, kill and resume runs and compare the results. Tests import this module by its path."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forked
from rank_scripts import SOURCE
from small import new_run, rows, small

from ippo_cli.config.errors import IppoError
from ippo_cli.runs.checkpoint_files import find_damage, newest_intact_checkpoint
from ippo_cli.runs.faults import fault_point_counts
from ippo_cli.runs.folder import MANIFEST, list_checkpoints, read_run_state
from ippo_cli.training.process import run_training

NEVER = "compose:error:1000000"  # never triggers; enables the counts of fault points
SHORT = ("num_iterations=3", "evaluation.every=2", "evaluation.greedy=false", "task.eval_size=4", "checkpoint.every=1")
ONE_AGENT = "task=sorting_solo"
PATIENCE_S = 90.0  # timeout for the remaining processes of a job


def fingerprint(folder: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return what must be equal in two runs: metric rows without times, and SHA-256 of the final weights."""
    newest = newest_intact_checkpoint(folder / "checkpoints")
    assert newest is not None, folder
    files = json.loads((newest / MANIFEST).read_text())["files"]
    weights = {name: entry["sha256"] for name, entry in files.items() if name.endswith(".safetensors")}
    assert weights
    return rows(folder), weights


def run_undisturbed(root: Path, *overrides: str) -> tuple[tuple[Any, ...], dict[str, int]]:
    """Return the fingerprint of an undisturbed run, and its passes of each fault point."""
    config, folder = new_run(root, *overrides, f"debug_faults=[{NEVER}]")
    run_training(config, folder, resumed=False)
    return fingerprint(folder), fault_point_counts()


def run_with_faults(root: Path, *overrides: str, faults: Sequence[str], folder: Path | None = None) -> tuple[Path, str]:
    """Start a run, or resume `folder`, in this process with these faults; return its folder and state."""
    config, new = new_run(root, *overrides, f"debug_faults=[{','.join(faults)}]")
    with suppress(IppoError, KeyboardInterrupt, RuntimeError):
        run_training(config, folder or new, resumed=folder is not None)
    return folder or new, read_run_state(folder or new)


@dataclass(kw_only=True)
class Tally:
    """Results of jobs that were killed repeatedly."""

    kills: int = 0
    runs: int = 0  # finished
    unusable: list[str] = field(default_factory=list)  # published checkpoints that were damaged
    lost: list[int] = field(default_factory=list)  # iterations lost by each kill
    differing: list[str] = field(default_factory=list)  # runs with results other than those of the undisturbed run
    in_save: int = 0  # kills while a checkpoint was being written


def start_job(root: Path, *overrides: str, faults: Sequence[str] = ()) -> Any:
    """Start `ippo-train resume=auto` in a new process."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RANK", "WORLD", "SLURM"))}
    command = [*small(overrides), f"output_dir={root}", "resume=auto", f"debug_faults=[{','.join(faults)}]"]
    return forked.start(
        "ippo_cli.cli.train",
        *command,
        environment=environment | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        printed=root / "printed",
        errors=root / "errors",
    )


def wait_for_exit(job: Any, limit_s: float = 600.0) -> int | None:
    """Wait for a job and return its exit code; negative signal number if a signal ended it."""
    job.join(limit_s)
    assert job.exitcode is not None, "the job hung"
    return job.exitcode


def child_processes(parent: int) -> list[int]:
    """Return the child processes of a process."""
    with suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return []


def kill_job_or_rank(job: Any, rng: random.Random) -> None:
    """Send SIGKILL to all processes of a job, as if its machine failed, or to one of its ranks."""
    ranks = child_processes(job.pid)
    if not ranks or rng.random() < 0.5:
        job.kill()
        victims = ranks
    else:
        victims = [rng.choice(ranks)]
    for victim in victims:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    job.join(PATIENCE_S)
    assert job.exitcode is not None, "the job did not end after one of its ranks was killed"


def record_kill(root: Path, tally: Tally) -> None:
    """Record the state after a kill: damaged published checkpoints, and lost iterations."""
    tally.kills += 1
    folders = sorted((path.parent for path in root.glob("default/*/run.json")), key=lambda path: path.stat().st_ctime)
    for folder in folders:
        checkpoints = list_checkpoints(folder / "checkpoints")
        tally.unusable += [f"{path}: {damage}" for path in checkpoints if (damage := find_damage(path)) is not None]
    if folders and read_run_state(folders[-1]) != "done":
        checkpoints = list_checkpoints(folders[-1] / "checkpoints")
        tally.in_save += any((folders[-1] / "checkpoints").glob("*.tmp"))
        written = folders[-1] / "metrics.jsonl"
        logged = written.read_text().count("\n") - 1 if written.is_file() else 0  # the first row precedes training
        saved = int(checkpoints[-1].name.partition("_")[2]) if checkpoints else 0
        tally.lost.append(max(0, logged - saved))


def kill_until_done(
    root: Path, expected: Any, *overrides: str, delays: Iterator[float], rng: random.Random, tally: Tally
) -> None:
    """Kill and restart one run after each delay; after the last delay let it finish."""
    while not kill_once(root, expected, *overrides, delay=next(delays, None), rng=rng, tally=tally):
        pass


def kill_once(
    root: Path, expected: Any, *overrides: str, delay: float | None, rng: random.Random, tally: Tally
) -> bool:
    """Start or resume a run and kill it after `delay` seconds (None: let it finish); return whether it is done."""
    job = start_job(root, *overrides)
    job.join(600 if delay is None else delay)
    killed = job.exitcode is None
    if killed:
        assert delay is not None, "the job hung"
        kill_job_or_rank(job, rng)
        record_kill(root, tally)
    done = [path.parent for path in root.glob("default/*/run.json") if read_run_state(path.parent) == "done"]
    if killed and not done:  # a run killed during its exit is done
        return False
    tally.runs += 1
    if len(done) != 1 or (job.exitcode != 0 and not killed):
        errors = (root / "errors").read_text()[-400:]
        tally.differing.append(f"exit code {job.exitcode}, {len(done)} runs are done: {errors}")
    elif fingerprint(done[0]) != expected:
        tally.differing.append(f"{done[0]} has other results")
    return True


def time_call(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of `work` and its seconds."""
    began = time.monotonic()
    return work(), time.monotonic() - began


def find_damage_after_flip(
    checkpoint: Path, rng: random.Random, file: Path | None = None, place: int | None = None
) -> str | None:
    """Flip one bit of a file, return the damage that is found, and restore the bit."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.stat().st_size)
    file = file or rng.choice(files)
    place = rng.randrange(file.stat().st_size) if place is None else place
    bit = rng.randrange(8)
    with file.open("r+b") as handle:
        handle.seek(place)
        [byte] = handle.read(1)
        handle.seek(place)
        handle.write(bytes([byte ^ 1 << bit]))
        handle.flush()
        try:
            return find_damage(checkpoint)
        finally:
            handle.seek(place)
            handle.write(bytes([byte]))
