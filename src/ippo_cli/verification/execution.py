"""Executes iterations of a run again, in child processes, on a temporary copy of the run."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import IppoError, VerificationError
from ippo_cli.runs.launch import INTERRUPTED, PREEMPTED, RankFailure, run_ranks
from ippo_cli.verification.copy_run import config_at, create_copy, execution_config, write_execution_config
from ippo_cli.verification.recorded import RecordedRun, read_state
from ippo_cli.verification.selection import Execution

OUTPUT_FILE = "output.txt"
TAIL_CHARACTERS = 600


@dataclass(frozen=True)
class ExecutedRun:
    """The copy after an execution."""

    run: RecordedRun
    seconds: float


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive iterations that the run executed with one configuration and number of processes."""

    base: int
    last: int
    is_last: bool


def execute(run: RecordedRun, execution: Execution, folder: Path) -> ExecutedRun:
    """Execute iterations again in `folder`, which is created. Raises `VerificationError` if training fails."""
    began = time.monotonic()
    try:
        create_copy(run, execution.base, folder)
        for segment in split_segments(run, execution):
            _execute_segment(run, segment, folder)
    except (IppoError, OSError) as error:
        if isinstance(error, RankFailure) and error.exit_code in (PREEMPTED, INTERRUPTED):
            raise
        output = (folder / OUTPUT_FILE).read_text(errors="replace") if (folder / OUTPUT_FILE).is_file() else ""
        raise VerificationError(
            f"iterations {execution.first} to {execution.last} cannot be executed again: {error} "
            f"{output[-TAIL_CHARACTERS:].strip()}".strip()
        ) from error
    return ExecutedRun(RecordedRun(folder), time.monotonic() - began)


def split_segments(run: RecordedRun, execution: Execution) -> list[Segment]:
    """Split an execution where the run was resumed with other values, other processes, or without optimizers."""
    ends = []
    before: Mapping[str, Any] = {}
    for start in run.starts:
        environment = start.content["environment"]
        changed = (
            "config" in start.content
            or environment.get("world_size") != before.get("world_size", environment.get("world_size"))
            or not environment.get("optimizers", True)
        )
        if changed and execution.base < start.iteration < execution.last:
            ends.append(start.iteration)
        before = environment
    bounds = [execution.base, *dict.fromkeys(ends), execution.last]
    return [Segment(base, last, last == execution.last) for base, last in itertools.pairwise(bounds)]


def recorded_environment(run: RecordedRun, iteration: int) -> Mapping[str, Any]:
    """What the run recorded of the processes that executed an iteration; `env.json` in runs without a history."""
    starts = [start.content["environment"] for start in run.starts if start.iteration < iteration]
    return starts[-1] if starts else run.record.environment


def evaluated_iterations(run: RecordedRun, every: int, last: int) -> set[int]:
    """The iterations after which the run was evaluated; by `evaluation.every` for those without a row."""
    recorded = {number for number, line in run.rows.items() if any(key.startswith("eval/") for key in line.value)}
    planned = {number for number in range(1, last + 1) if every > 0 and number % every == 0}
    return recorded | (planned - run.rows.keys())


def sampled_iterations(run: RecordedRun, every: int, last: int) -> set[int]:
    """The iterations with training samples: those recorded, and those of `tracker.samples_every`."""
    recorded = {file.iteration for file in run.record.sample_files if file.mode == "train"}
    return recorded | {number for number in range(1, last + 1) if every > 0 and number % every == 0}


def _execute_segment(run: RecordedRun, segment: Segment, folder: Path) -> None:
    environment = recorded_environment(run, segment.base + 1)
    plain = config_at(run, segment.base + 1, folder.with_name(f"{folder.name}-config"))
    threads = recorded_threads(environment, plain)
    config = execution_config(plain, segment.last, threads, environment.get("device"))
    if segment.is_last:
        config["checkpoint"]["optimizer"] = False  # nothing continues from it
    evaluate_at = evaluated_iterations(run, int(plain["evaluation"]["every"]), segment.last)
    sample_at = sampled_iterations(run, int(plain["tracker"]["samples_every"]), segment.last)
    is_resumed = segment.base > 0
    write_execution_config(folder, config, evaluate_at, sample_at, is_resumed=is_resumed)
    with (folder / OUTPUT_FILE).open("ab") as output, _threads_variable(environment):
        run_ranks(folder, _world_size(run, segment, environment, plain), resumed=is_resumed, output=output)


def recorded_threads(environment: Mapping[str, Any], plain: Mapping[str, Any]) -> int | None:
    """CPU threads per rank, if the run recorded them."""
    return environment.get("threads") or plain["launch"].get("threads")


@contextmanager
def _threads_variable(environment: Mapping[str, Any]) -> Iterator[None]:
    """Set OMP_NUM_THREADS as in the run, for libraries of user code."""
    recorded = environment.get("threads") or (environment.get("processes") or {}).get("OMP_NUM_THREADS")
    before = os.environ.get("OMP_NUM_THREADS")
    if recorded is not None:
        os.environ["OMP_NUM_THREADS"] = str(recorded)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _world_size(run: RecordedRun, segment: Segment, environment: Mapping[str, Any], plain: Mapping[str, Any]) -> int:
    """The number of processes of the run at a segment: recorded, or of its checkpoint, or configured."""
    if "world_size" in environment:
        return int(environment["world_size"])
    states = [read_state(path) for number, path in run.checkpoints.items() if number >= segment.base]
    if states and "world_size" in states[0]:
        return int(states[0]["world_size"])
    return int(plain["launch"]["processes"]) * int(plain["launch"]["nodes"])
