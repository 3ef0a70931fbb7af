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
from ippo_cli.config.secrets import redacted
from ippo_cli.engine import distributed
from ippo_cli.reporting.run_log import Run
from ippo_cli.runs.folder import all_checkpoints, from_here, mark_failed, resume_command

SAVING_PATIENCE_S = 10.0
"""How long ranks that could save wait for each other: all of them fail at the same point, if any can save."""
TELLING_PATIENCE_S = 3.0
"""How long others wait, to learn who has more to tell."""
LAUNCHER_FIRST_S = 1.0
"""How long a rank that lost another one is silent, so that who started them can say first which one was killed."""


class RankGone(IppoError):
    """Another rank ended without a word: it was killed, or its machine is gone."""


class Savable(Protocol):
    """What can still be saved when a run fails."""

    def can_save(self, error: BaseException) -> bool: ...

    def save_reached(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What one rank says of its own end."""

    error: str  # `RewardError: ...`
    exit_code: int
    secondary: bool  # it only follows from another rank's end
    can_save: bool
    steps: int  # collectives so far: what is still to be done together must begin at the same one


def fail(error: BaseException, run: Run, trainer: Savable | None) -> BaseException:
    """End this rank after an error: save if all ranks can, say so in `run.json`, keep the traceback in `errors/`.

    Returns what to raise: the error itself where this rank tells of it, a short one or none where another one does.
    """
    own = Failure(
        error=f"{type(error).__name__}: {error}",
        exit_code=_exit_code(error),
        secondary=isinstance(error, OtherRankFailed) or distributed.lost_connection(error),
        can_save=trainer is not None and trainer.can_save(error),
        steps=distributed.steps_taken(),
    )
    keep_traceback(run.folder, error)
    patience = SAVING_PATIENCE_S if own.can_save else TELLING_PATIENCE_S
    if isinstance(error, KeyboardInterrupt) and not own.can_save:
        patience = 0.0  # Ctrl-C came twice: now
    words = distributed.exchange_exit_reports(json.dumps(asdict(own)), patience)
    known = {rank: Failure(**json.loads(failure)) for rank, failure in words.items()}
    everybody = len(known) == distributed.world_size()
    together = everybody and all(each.can_save and each.steps == own.steps for each in known.values())
    saved = False
    if together and trainer is not None:
        try:
            saved = trainer.save_reached()
        except Exception as second:  # of the two the first is what ended the run
            error.add_note(f"what was reached could not be saved ({type(second).__name__}: {second})")
    told = _told(error, known, run)
    if trainer is not None:
        told.add_note(_what_is_left(run.folder, saved=saved))
    return told


def _told(error: BaseException, known: Mapping[int, Failure], run: Run) -> BaseException:
    """The error of the first rank that has one of its own; of what others did, ranks that are gone."""
    rank = distributed.rank()
    causes = [number for number, failure in known.items() if not failure.secondary]
    first = causes[0] if causes else min(known)
    gone = sorted(set(range(distributed.world_size())) - known.keys())
    if 0 in gone:
        gone = [0]  # without it, which may have kept the store, nothing is known of others
    if not causes and gone:
        which = f"rank {gone[0]}" if len(gone) == 1 else f"one of ranks {' '.join(map(str, gone))}"
        time.sleep(LAUNCHER_FIRST_S)
        place = from_here(error_file(run.folder, rank))
        error = RankGone(f"rank {rank} left because {which} is gone; its own traceback is in {place}")
    record = str(error) if isinstance(error, RankGone) else known[first].error
    with suppress(OSError):  # the disk may be what failed
        run.finish("failed", record)
        if rank == first and 0 in gone:  # nobody else writes it then
            mark_failed(run.folder, record)
    silent = rank != first or (isinstance(error, KeyboardInterrupt) and rank != 0)
    return SystemExit(known[first].exit_code) if silent else error


def _exit_code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return error.exit_code if isinstance(error, IppoError) else UNEXPECTED


def _what_is_left(folder: Path, *, saved: bool) -> str:
    """What a failed run can be resumed from."""
    there = all_checkpoints(folder / "checkpoints")
    if not there:
        return "there is no checkpoint to go on from; start a new run"
    newest = int(there[-1].name.rpartition("_")[2])
    kept = f"saved after iteration {newest}" if saved else f"the newest checkpoint is the one after iteration {newest}"
    return f"{kept}; to go on from there: {resume_command(folder)}"


def error_file(folder: Path, rank: int) -> Path:
    """Where a rank that failed leaves its traceback."""
    return folder / "errors" / f"rank_{rank}.txt"


def keep_traceback(folder: Path, error: BaseException) -> None:
    """Write the whole traceback down; on the screen one rank's message is enough."""
    with suppress(OSError):
        file = error_file(folder, distributed.rank())
        file.parent.mkdir(exist_ok=True)
        file.write_text(redacted("".join(traceback.format_exception(error))))
