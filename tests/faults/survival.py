"""Runs that are stopped, killed and gone on with, and what must not differ afterwards. Tests import it by its path."""

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

NEVER = "compose:error:1000000"  # a fault that does not happen: with it points are counted
SHORT = ("num_iterations=3", "evaluation.every=2", "evaluation.greedy=false", "task.eval_size=4", "checkpoint.every=1")
ONE_AGENT = "task=sorting_solo"
PATIENCE_S = 90.0  # for what is left of a job to end


def fingerprint(folder: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """What two runs must have in common: rows without times, and sha256 of the weights they end with."""
    newest = newest_intact_checkpoint(folder / "checkpoints")
    assert newest is not None, folder
    files = json.loads((newest / MANIFEST).read_text())["files"]
    weights = {name: entry["sha256"] for name, entry in files.items() if name.endswith(".safetensors")}
    assert weights
    return rows(folder), weights


def undisturbed(root: Path, *overrides: str) -> tuple[tuple[Any, ...], dict[str, int]]:
    """The fingerprint of a whole run, and how often it comes by each point."""
    config, folder = new_run(root, *overrides, f"debug_faults=[{NEVER}]")
    run_training(config, folder, resumed=False)
    return fingerprint(folder), fault_point_counts()


def stopped(root: Path, *overrides: str, faults: Sequence[str], folder: Path | None = None) -> tuple[Path, str]:
    """A run of this process, or one that goes on, with these faults; its folder and how it ended."""
    config, new = new_run(root, *overrides, f"debug_faults=[{','.join(faults)}]")
    with suppress(IppoError, KeyboardInterrupt, RuntimeError):
        run_training(config, folder or new, resumed=folder is not None)
    return folder or new, read_run_state(folder or new)


@dataclass(kw_only=True)
class Tally:
    """What became of jobs that were killed again and again."""

    kills: int = 0
    runs: int = 0  # that came to their end
    unusable: list[str] = field(default_factory=list)  # published checkpoints that were damaged
    lost: list[int] = field(default_factory=list)  # iterations that each kill cost
    differing: list[str] = field(default_factory=list)  # runs that ended otherwise than the undisturbed one
    in_save: int = 0  # kills while a checkpoint was being written


def start_job(root: Path, *overrides: str, faults: Sequence[str] = ()) -> Any:
    """`ippo-train` in a process of its own; it goes on with what there is."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RANK", "WORLD", "SLURM"))}
    command = [*small(overrides), f"output_dir={root}", "resume=auto", f"debug_faults=[{','.join(faults)}]"]
    return forked.start(
        "ippo_cli.cli.train",
        *command,
        environment=environment | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        printed=root / "printed",
        errors=root / "errors",
    )


def ended(job: Any, limit_s: float = 600.0) -> int | None:
    """The exit code of a job; a signal's number, negative, where one ended it."""
    job.join(limit_s)
    assert job.exitcode is not None, "the job hung"
    return job.exitcode


def children(parent: int) -> list[int]:
    """The processes that this one has started."""
    with suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return []


def kill_something(job: Any, chance: random.Random) -> None:
    """SIGKILL for all of a job at once, as where a machine dies; or for one of its ranks."""
    ranks = children(job.pid)
    if not ranks or chance.random() < 0.5:
        job.kill()
        victims = ranks
    else:
        victims = [chance.choice(ranks)]
    for victim in victims:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    job.join(PATIENCE_S)
    assert job.exitcode is not None, "a job one of whose ranks was killed did not end"


def inspect(root: Path, tally: Tally) -> None:
    """What a kill has left: every published checkpoint must be intact."""
    tally.kills += 1
    folders = sorted((path.parent for path in root.glob("default/*/run.json")), key=lambda path: path.stat().st_ctime)
    for folder in folders:
        there = list_checkpoints(folder / "checkpoints")
        tally.unusable += [f"{path}: {damage}" for path in there if (damage := find_damage(path)) is not None]
    if folders and read_run_state(folders[-1]) != "done":
        there = list_checkpoints(folders[-1] / "checkpoints")
        tally.in_save += any((folders[-1] / "checkpoints").glob("*.tmp"))
        written = folders[-1] / "metrics.jsonl"
        logged = written.read_text().count("\n") - 1 if written.is_file() else 0  # the first row is of no iteration
        saved = int(there[-1].name.partition("_")[2]) if there else 0
        tally.lost.append(max(0, logged - saved))


def killed_until_done(
    root: Path, expected: Any, *overrides: str, delays: Iterator[float], chance: random.Random, tally: Tally
) -> None:
    """One run, killed after each delay and started again, until it is done; without more delays it is left alone."""
    while not killed_once(root, expected, *overrides, delay=next(delays, None), chance=chance, tally=tally):
        pass


def killed_once(
    root: Path, expected: Any, *overrides: str, delay: float | None, chance: random.Random, tally: Tally
) -> bool:
    """Start a run, or go on with it, and kill it after the delay, if it is given one. Whether it is through."""
    job = start_job(root, *overrides)
    job.join(600 if delay is None else delay)
    killed = job.exitcode is None
    if killed:
        assert delay is not None, "the job hung"
        kill_something(job, chance)
        inspect(root, tally)
    done = [path.parent for path in root.glob("default/*/run.json") if read_run_state(path.parent) == "done"]
    if killed and not done:  # one that is killed on its way out is done
        return False
    tally.runs += 1
    if len(done) != 1 or (job.exitcode != 0 and not killed):
        said = (root / "errors").read_text()[-400:]
        tally.differing.append(f"exit code {job.exitcode}, {len(done)} runs are done: {said}")
    elif fingerprint(done[0]) != expected:
        tally.differing.append(f"{done[0]} ended otherwise")
    return True


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and the seconds it took."""
    began = time.monotonic()
    return work(), time.monotonic() - began


def damaged_by_a_flip(
    checkpoint: Path, chance: random.Random, file: Path | None = None, place: int | None = None
) -> str | None:
    """What is found wrong with a checkpoint while one bit of one of its files is another."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.stat().st_size)
    file = file or chance.choice(files)
    place = chance.randrange(file.stat().st_size) if place is None else place
    bit = chance.randrange(8)
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
