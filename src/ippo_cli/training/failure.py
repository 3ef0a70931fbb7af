"""Failure handling of a run: finds the rank that failed first, saves if all ranks can, and reports one error."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from ippo_cli.config.errors import INTERRUPTED, UNEXPECTED, IppoError, OtherRankFailed
from ippo_cli.config.secrets import redact_text
from ippo_cli.engine import distributed
from ippo_cli.reporting.run_log import RunLog
from ippo_cli.runs.folder import display_path, list_checkpoints, mark_run_failed, resume_command

SAVE_WAIT_S = 10.0
"""How long ranks that can save wait for each other's reports."""
REPORT_WAIT_S = 3.0
"""How long other ranks wait for reports, to find the cause."""
LAUNCHER_DELAY_S = 1.0
"""Delay before a rank reports a lost rank, so that the launcher can first report which rank was killed."""


class RankLost(IppoError):
    """Another rank ended without a report: it was killed, or its machine failed."""


class SavableTrainer(Protocol):
    """A trainer whose last resume point can be saved after a failure."""

    def can_save(self, error: BaseException) -> bool: ...

    def save_resume_point(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """One rank's exit report."""

    error: str  # `RewardError: ...`
    exit_code: int
    is_secondary: bool  # caused by the end of another rank
    can_save: bool
    collective_steps: int  # completed collectives: ranks can save together only if all have the same number


def handle_failure(error: BaseException, run: RunLog, trainer: SavableTrainer | None) -> BaseException:
    """Save if all ranks can, set the state in `run.json`, and write the traceback to `errors/`.

    Returns the exception to raise: the error itself on the rank that reports it, `RankLost` if another rank is gone,
    `SystemExit` on the other ranks.
    """
    own_report = FailureReport(
        error=f"{type(error).__name__}: {error}",
        exit_code=_exit_code(error),
        is_secondary=isinstance(error, OtherRankFailed) or distributed.lost_connection(error),
        can_save=trainer is not None and trainer.can_save(error),
        collective_steps=distributed.collective_count(),
    )
    write_traceback(run.folder, error)
    wait_s = SAVE_WAIT_S if own_report.can_save else REPORT_WAIT_S
    if isinstance(error, KeyboardInterrupt) and not own_report.can_save:
        wait_s = 0.0  # second Ctrl-C: exit immediately
    messages = distributed.exchange_exit_reports(json.dumps(asdict(own_report)), wait_s)
    reports = {rank: FailureReport(**json.loads(failure)) for rank, failure in messages.items()}
    has_all_reports = len(reports) == distributed.world_size()
    can_save_together = has_all_reports and all(
        report.can_save and report.collective_steps == own_report.collective_steps for report in reports.values()
    )
    saved = False
    if can_save_together and trainer is not None:
        try:
            saved = trainer.save_resume_point()
        except Exception as second:  # report the first error: it ended the run
            error.add_note(f"cannot save the last resume point ({type(second).__name__}: {second})")
    reported = _error_to_report(error, reports, run)
    if trainer is not None:
        reported.add_note(_resume_hint(run.folder, saved=saved))
    return reported


def _error_to_report(error: BaseException, reports: Mapping[int, FailureReport], run: RunLog) -> BaseException:
    """The error of the first rank that is not secondary, else `RankLost`; `SystemExit` on ranks that do not report."""
    rank = distributed.rank()
    causes = [number for number, failure in reports.items() if not failure.is_secondary]
    first = causes[0] if causes else min(reports)
    lost_ranks = sorted(set(range(distributed.world_size())) - reports.keys())
    if 0 in lost_ranks:
        lost_ranks = [0]  # rank 0 may host the store: without it the state of other ranks is unknown
    if not causes and lost_ranks:
        which = f"rank {lost_ranks[0]}" if len(lost_ranks) == 1 else f"one of ranks {' '.join(map(str, lost_ranks))}"
        time.sleep(LAUNCHER_DELAY_S)
        place = display_path(error_file(run.folder, rank))
        error = RankLost(f"rank {rank} exited because {which} is gone; the traceback of rank {rank} is in {place}")
    record = str(error) if isinstance(error, RankLost) else reports[first].error
    with suppress(OSError):  # the disk may be what failed
        run.finish("failed", record)
        if rank == first and 0 in lost_ranks:  # rank 0 cannot write it
            mark_run_failed(run.folder, record)
    is_silent = rank != first or (isinstance(error, KeyboardInterrupt) and rank != 0)
    return SystemExit(reports[first].exit_code) if is_silent else error


def _exit_code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return error.exit_code if isinstance(error, IppoError) else UNEXPECTED


def _resume_hint(folder: Path, *, saved: bool) -> str:
    """How a failed run can be resumed."""
    checkpoints = list_checkpoints(folder / "checkpoints")
    if not checkpoints:
        return "there is no checkpoint to resume from; start a new run"
    newest = int(checkpoints[-1].name.rpartition("_")[2])
    kept = f"saved after iteration {newest}" if saved else f"the newest checkpoint is from iteration {newest}"
    return f"{kept}; resume with: {resume_command(folder)}"


def error_file(folder: Path, rank: int) -> Path:
    """The traceback file of a failed rank."""
    return folder / "errors" / f"rank_{rank}.txt"


def write_traceback(folder: Path, error: BaseException) -> None:
    """Write the full traceback to the run's folder; the terminal shows one rank's message only."""
    with suppress(OSError):
        file = error_file(folder, distributed.rank())
        file.parent.mkdir(exist_ok=True)
        file.write_text(redact_text("".join(traceback.format_exception(error))))
