"""Verifies a run: checks its files, executes some of its iterations again, and writes a certificate."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import IppoError, ResumeError, VerificationError
from ippo_cli.runs.folder import RUN_LOCK, lock_folder
from ippo_cli.runs.launch import INTERRUPTED, PREEMPTED, RankFailure, run_ranks
from ippo_cli.verification.certificate import Verification
from ippo_cli.verification.comparison import compare
from ippo_cli.verification.copy_run import config_at, create_copy, execution_config, write_execution_config
from ippo_cli.verification.integrity import check_files, uncovered_iterations
from ippo_cli.verification.recorded import RecordedRun, read_state
from ippo_cli.verification.selection import (
    Execution,
    describe_bases,
    draw_iterations,
    find_bases,
    plan_executions,
)

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


NOTHING_COMPARED = "nothing was compared: the run has no recorded hashes, and no iteration was executed again"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which iterations to execute: `iterations`, or `count` random ones."""

    iterations: Sequence[int] = ()
    count: int = 2
    seed: int = 0
    span: int = 20  # iterations that one random choice may need, and up to which executions reach a checkpoint


def verify_run(
    folder: Path, selection: Selection, command: Sequence[str], report: Callable[[str], None]
) -> Verification:
    """Verify a run that no process is executing. `report` is called before each execution.

    Raises `ConfigError` for iterations that cannot be executed again, and `ResumeError` for a run that is going on.
    """
    with ExitStack() as held:
        if (folder / RUN_LOCK).is_file():
            held.enter_context(lock_folder(folder, shared=True))
        run = RecordedRun(folder)
        if run.record.status == "running":
            raise ResumeError(f"{folder} is active in another process; wait until it ends")
        bases = find_bases(run)
        targets = list(selection.iterations) or draw_iterations(
            run, bases, selection.count, selection.seed, selection.span
        )
        executions = plan_executions(run, bases, targets, selection.span)
        report("comparing files with recorded hashes")
        found = Verification(
            folder=folder,
            command=command,
            checks=check_files(run),
            executable=describe_bases(run, bases),
            uncovered=uncovered_iterations(run),
        )
        scratch = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="ippo-verify-")))
        for execution in executions:
            report(f"executing iterations {execution.first} to {execution.last} again")
            _verify_execution(run, execution, scratch / str(execution.first), found)
    if not executions and not any(check.count for check in found.checks if check.has_hashes):
        found.failures.append(NOTHING_COMPARED)
    return found


def _verify_execution(run: RecordedRun, execution: Execution, folder: Path, found: Verification) -> None:
    try:
        executed = execute(run, execution, folder)
    except VerificationError as error:
        found.failures.append(str(error))
        return
    recorded = recorded_environment(run, execution.first)
    now = recorded_environment(executed.run, execution.first)
    changes = environment_changes(recorded, now)
    found.environments.append({"recorded": recorded, "executed": now, "changes": changes})
    found.comparisons.append(compare(run, executed.run, execution, executed.seconds))
    plain = config_at(run, execution.first, folder.with_name(f"{folder.name}-limits"))
    found.limits += [text for text in equality_limits(recorded, plain) if text not in found.limits]


COMPARED = ("world_size", "threads", "device", "gpu", "cpu", "python", "platform")


def environment_changes(recorded: Mapping[str, Any], executed: Mapping[str, Any]) -> list[str]:
    """Lines `torch: 2.13.0 -> 2.14.0` for what the run recorded and the execution has otherwise."""
    return [f"{name}: {before} -> {now}" for name, before, now in _changes(recorded, executed)]


def _changes(recorded: Mapping[str, Any], executed: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    packages = executed.get("packages") or {}
    for name, before in (recorded.get("packages") or {}).items():
        if packages.get(name) != before:
            yield name, before, packages.get(name)
    for name in COMPARED:
        if name in recorded and recorded[name] != executed.get(name):
            yield name, recorded[name], executed.get(name)


def equality_limits(recorded: Mapping[str, Any], plain: Mapping[str, Any]) -> list[str]:
    """Reasons why an execution may differ although nothing was edited, apart from changed versions."""
    reasons = []
    if not recorded:
        reasons.append("the run recorded no versions")
    elif "threads" not in recorded and plain["launch"].get("threads") is None:
        reasons.append("the run recorded no number of threads; launch.threads=N sets it")
    if recorded.get("device") == "cuda":
        reasons.append("operations on GPUs are not deterministic")
    dtypes = {str(agent["actor"].get("dtype")) for agent in plain["task"]["agents"].values()}
    if dtypes - {"fp32"}:
        reasons.append(f"weights are in {' '.join(sorted(dtypes))}")
    return reasons
