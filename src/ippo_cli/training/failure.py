"""A run that fails: which rank failed first, whether all of them can still save together, and who tells of it."""

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
"""How long ranks that could save wait for each other: all of them fail at the same point, if any can save."""
REPORT_WAIT_S = 3.0
"""How long others wait, to learn who has more to tell."""
LAUNCHER_DELAY_S = 1.0
"""How long a rank that lost another one is silent, so that who started them can say first which one was killed."""


class RankLost(IppoError):
    """Another rank ended without a word: it was killed, or its machine is gone."""


class SavableTrainer(Protocol):
    """What can still be saved when a run fails."""

    def can_save(self, error: BaseException) -> bool: ...

    def save_resume_point(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """What one rank says of its own end."""

    error: str  # `RewardError: ...`
    exit_code: int
    is_secondary: bool  # it only follows from another rank's end
    can_save: bool
    steps: int  # collectives so far: what is still to be done together must begin at the same one


def handle_failure(error: BaseException, run: RunLog, trainer: SavableTrainer | None) -> BaseException:
    """End this rank after an error: save if all ranks can, say so in `run.json`, keep the traceback in `errors/`.

    Returns what to raise: the error itself where this rank tells of it, a short one or none where another one does.
    """
    own_report = FailureReport(
        error=f"{type(error).__name__}: {error}",
        exit_code=_exit_code(error),
        is_secondary=isinstance(error, OtherRankFailed) or distributed.lost_connection(error),
        can_save=trainer is not None and trainer.can_save(error),
        steps=distributed.collective_count(),
    )
    write_traceback(run.folder, error)
    wait_s = SAVE_WAIT_S if own_report.can_save else REPORT_WAIT_S
    if isinstance(error, KeyboardInterrupt) and not own_report.can_save:
        wait_s = 0.0  # Ctrl-C came twice: now
    messages = distributed.exchange_exit_reports(json.dumps(asdict(own_report)), wait_s)
    reports = {rank: FailureReport(**json.loads(failure)) for rank, failure in messages.items()}
    has_all_reports = len(reports) == distributed.world_size()
    can_save_together = has_all_reports and all(
        each.can_save and each.steps == own_report.steps for each in reports.values()
    )
    saved = False
    if can_save_together and trainer is not None:
        try:
            saved = trainer.save_resume_point()
        except Exception as second:  # of the two the first is what ended the run
            error.add_note(f"what was reached could not be saved ({type(second).__name__}: {second})")
    reported = _error_to_report(error, reports, run)
    if trainer is not None:
        reported.add_note(_resume_hint(run.folder, saved=saved))
    return reported


def _error_to_report(error: BaseException, reports: Mapping[int, FailureReport], run: RunLog) -> BaseException:
    """The error of the first rank that has one of its own; of what others did, ranks that are gone."""
    rank = distributed.rank()
    causes = [number for number, failure in reports.items() if not failure.is_secondary]
    first = causes[0] if causes else min(reports)
    lost_ranks = sorted(set(range(distributed.world_size())) - reports.keys())
    if 0 in lost_ranks:
        lost_ranks = [0]  # without it, which may have kept the store, nothing is known of others
    if not causes and lost_ranks:
        which = f"rank {lost_ranks[0]}" if len(lost_ranks) == 1 else f"one of ranks {' '.join(map(str, lost_ranks))}"
        time.sleep(LAUNCHER_DELAY_S)
        place = display_path(error_file(run.folder, rank))
        error = RankLost(f"rank {rank} left because {which} is gone; its own traceback is in {place}")
    record = str(error) if isinstance(error, RankLost) else reports[first].error
    with suppress(OSError):  # the disk may be what failed
        run.finish("failed", record)
        if rank == first and 0 in lost_ranks:  # nobody else writes it then
            mark_run_failed(run.folder, record)
    is_silent = rank != first or (isinstance(error, KeyboardInterrupt) and rank != 0)
    return SystemExit(reports[first].exit_code) if is_silent else error


def _exit_code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return error.exit_code if isinstance(error, IppoError) else UNEXPECTED


def _resume_hint(folder: Path, *, saved: bool) -> str:
    """What a failed run can be resumed from."""
    checkpoints = list_checkpoints(folder / "checkpoints")
    if not checkpoints:
        return "there is no checkpoint to go on from; start a new run"
    newest = int(checkpoints[-1].name.rpartition("_")[2])
    kept = f"saved after iteration {newest}" if saved else f"the newest checkpoint is the one after iteration {newest}"
    return f"{kept}; to go on from there: {resume_command(folder)}"


def error_file(folder: Path, rank: int) -> Path:
    """Where a rank that failed leaves its traceback."""
    return folder / "errors" / f"rank_{rank}.txt"


def write_traceback(folder: Path, error: BaseException) -> None:
    """Write the whole traceback down; on the screen one rank's message is enough."""
    with suppress(OSError):
        file = error_file(folder, distributed.rank())
        file.parent.mkdir(exist_ok=True)
        file.write_text(redact_text("".join(traceback.format_exception(error))))
