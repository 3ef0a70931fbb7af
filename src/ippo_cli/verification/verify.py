"""Verifies a run: checks its files, executes some of its iterations again, and writes a certificate."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ippo_cli.config.errors import ResumeError, VerificationError
from ippo_cli.runs.folder import RUN_LOCK, lock_folder
from ippo_cli.verification.certificate import Verification
from ippo_cli.verification.comparison import compare
from ippo_cli.verification.copy_run import config_at
from ippo_cli.verification.environment import environment_changes, equality_limits
from ippo_cli.verification.execution import execute, recorded_environment
from ippo_cli.verification.integrity import check_files, uncovered_iterations
from ippo_cli.verification.recorded import RecordedRun
from ippo_cli.verification.selection import (
    Execution,
    describe_bases,
    draw_iterations,
    find_bases,
    plan_executions,
)

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
