"""One job of a sweep, in whatever process a launcher runs it: trained by ranks of its own, its row kept true."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from ippo_cli.compose.exits import block
from ippo_cli.compose.load import leaves, resolve, to_yaml, typed
from ippo_cli.compose.resume import changes, refuse_drift
from ippo_cli.config.checks import check
from ippo_cli.config.errors import INTERRUPTED, UNEXPECTED, ConfigError, IppoError, Preempted, ResumeError
from ippo_cli.config.schema import Config
from ippo_cli.engine import launchers
from ippo_cli.runs.folder import (
    START_LOCK,
    all_checkpoints,
    from_here,
    in_use,
    lock,
    refuse_other_world_size,
    start_files,
    warn,
)
from ippo_cli.runs.handlers import without_ignored_hangup
from ippo_cli.runs.input_files import changed_inputs, input_files, record_inputs
from ippo_cli.runs.launch import FORWARDED, RankFailure, run_ranks
from ippo_cli.runs.parent import leave_with_parent
from ippo_cli.sweeps import folder as sweep_folder
from ippo_cli.sweeps.folder import LEAVING, Row, changed, rows_of, typed_for

LEFT = (Preempted.exit_code, INTERRUPTED)
OF_SCHEDULERS = (signal.SIGUSR1, signal.SIGUSR2)  # before a time limit: SIGTERM comes from who wants the job to end


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a job must know of its sweep."""

    folder: Path
    host: str  # where the sweep's own process is
    process: int  # and its id
    command: tuple[str, ...]
    folders: tuple[str, ...]  # overrides that add folders of options
    resumed: bool
    total: int | None  # None where a sweeper makes up its jobs on the way
    attempt: str = ""  # at the sweep; jobs that an earlier one left in a queue leave it to the newest


def run_job(this: Sweep, node: DictConfig) -> float:
    """What a launcher calls, here or in a process of its own: train one job and keep its row. The last score."""
    hydra = HydraConfig.get()
    subdir, texts = str(hydra.sweep.subdir), [str(text) for text in hydra.overrides.task]
    row = next((row for row in rows_of(this.folder) if row.folder == subdir), Row(int(hydra.job.num), texts, subdir))
    return run_row(this, replace(row, overrides=texts), lambda: resolve(node))


def run_row(this: Sweep, row: Row, compose: Callable[[], dict[str, Any]]) -> float:
    """Train the job of one row with what `compose` gives, and keep the row. The last score."""
    subdir, texts = row.folder, row.overrides
    rows = rows_of(this.folder)
    folder = this.folder / subdir
    here = (socket.gethostname(), os.getpid()) == (this.host, this.process)
    if (this.folder / LEAVING).exists():
        return float("nan")
    if sweep_folder.attempt_of(this.folder) != this.attempt:
        print(f"job {row.job} was left in a queue by a sweep that has been gone on with since: it leaves", flush=True)
        return float("nan")
    if sweep_folder.is_done(folder):  # since this job was put into a scheduler's queue
        with changed(this.folder, row.job) as kept:
            sweep_folder.end(kept, "done", 0, None)
            sweep_folder.note_run(kept, folder)
        return _last_score(kept)
    own = sweep_folder.swept(rows).get(row.job) or " ".join(texts)
    name = f"job {row.job} of {this.total}" if this.total else f"job {row.job}"
    tag = f"[{row.job}/{this.total}]" if this.total else f"[{row.job}]"
    with ExitStack() as held:
        if not here:
            held.enter_context(_worker_process(this.process, f"{tag} "))
        asked = held.enter_context(_Asked())
        print(f"{tag if here else 'begins:'} {own} -> {from_here(folder)}", flush=True)
        with changed(this.folder, row.job) as kept:
            kept.overrides, kept.folder = texts, subdir
            sweep_folder.begin(kept)
        state, code, error = _outcome(lambda: _train(this, row, compose(), folder, asked), folder)
        left_by = asked.number()
        if left_by is not None and code not in (0, *LEFT):  # a rank that cannot save yet is killed by the signal
            state, error = "preempted", None
        if left_by is not None and code != 0:
            code = INTERRUPTED if left_by == signal.SIGINT else Preempted.exit_code
        if row_now(this.folder, row.job).pruned_at is not None and state in ("preempted", "done"):
            state, code, error = "pruned", 0, None  # by what was asked of it, had it ended by then or not
        by_scheduler = left_by is None or left_by in OF_SCHEDULERS  # None: before its job's end, which it knows
        requeues = code == Preempted.exit_code and by_scheduler and launchers.may_requeue(os.environ)
        with changed(this.folder, row.job) as kept:
            sweep_folder.end(kept, "waiting" if requeues else state, code, error)
            kept.slurm = launchers.submitted_job(os.environ) if requeues else None
            sweep_folder.note_run(kept, folder)
        if error is not None:
            print(block(f"ippo: {name}: {own}: {error}"), file=sys.stderr, flush=True)
    if requeues:
        if launchers.requeue(os.environ):
            raise SystemExit(code)  # without a result, as the launcher waits for the next attempt's
        with changed(this.folder, row.job) as kept:
            sweep_folder.end(kept, state, code, "its job could not be put back into the queue")
    if here and (left_by is not None or code in LEFT):
        number = left_by or (signal.SIGINT if code == INTERRUPTED else signal.SIGTERM)
        (this.folder / LEAVING).write_text(str(int(number)))
    return _last_score(kept)


def row_now(folder: Path, job: int) -> Row:
    """A job's row as it stands in `sweep.json`."""
    return next((row for row in rows_of(folder) if row.job == job), Row(job, [], ""))


def _last_score(row: Row) -> float:
    return row.score.get("last", {}).get("score", float("nan"))


def _train(this: Sweep, row: Row, plain: dict[str, Any], folder: Path, asked: _Asked) -> None:
    config = typed(plain)
    check(config, config.launch.processes)
    if launchers.external_world_size() is not None:
        raise ConfigError(
            "hydra.launcher",
            "starts several tasks for a job, which starts its ranks itself",
            "use one task per job, and launch.processes=N",
        )
    goes_on = this.resumed or launchers.restarts(os.environ) > 0 or row.parent is not None
    resumed = goes_on and bool(all_checkpoints(folder / "checkpoints"))
    inputs = input_files(config)
    if resumed:
        refuse_resume(folder, plain, config)
        for line in changed_inputs(folder, inputs):
            warn(line)
        for change in changes(folder, dict(leaves(plain))):
            print(change, flush=True)
    else:
        _set_aside(folder)
    with lock(folder, name=START_LOCK):
        start_files(folder, to_yaml(plain), [*this.folders, *row.overrides], this.command, resumed=resumed)
        record_inputs(folder, inputs, resumed=resumed)
        if asked.number() is not None:
            raise Preempted("asked to leave before it began")
        run_ranks(folder, config.launch.processes, resumed=resumed)


def take_up(sweep: Path, row: Row) -> bool:
    """Whether a job has something to go on from; one that begins anew gets another share of the cores, which one that
    has begun keeps, as another number of threads rounds differently.

    Raises `ResumeError` where SLURM still runs it. What it has put back into its queue leaves when it starts.
    """
    if row.slurm is not None and (launchers.queued([row.slurm]) or {}).get(row.slurm, "PENDING") != "PENDING":
        raise ResumeError(
            f"{row.folder} is trained by SLURM's job {row.slurm}; wait for its end, or end it with scancel {row.slurm}"
        )
    begun = bool(all_checkpoints(sweep / row.folder / "checkpoints"))
    if not begun:
        row.overrides, row.threads = typed_for(row), None
    return begun


def refuse_resume(folder: Path, plain: dict[str, Any], config: Config) -> None:
    """Raise `ResumeError` where a job's run cannot go on with this configuration, or already does."""
    if folder.is_dir() and in_use(folder):
        raise ResumeError(f"{folder} is in use by another process")
    checkpoints = all_checkpoints(folder / "checkpoints")
    if checkpoints:
        refuse_drift(folder, dict(leaves(plain)))
        if not config.checkpoint.reshard:
            refuse_other_world_size(checkpoints[-1], config.launch.processes)


def _outcome(train: Callable[[], None], folder: Path) -> tuple[str, int, str | None]:
    """State, exit code and error of a job."""
    before = sweep_folder.read_run(folder)
    try:
        train()
    except RankFailure as error:
        if error.exit_code in LEFT:
            return "preempted", error.exit_code, None
        known = sweep_folder.read_run(folder)  # says more, if this attempt got as far as that
        told = known.get("error") if known != before else None
        return "failed", error.exit_code, str(told or error)
    except Preempted as error:
        return "waiting", error.exit_code, None
    except IppoError as error:
        return "refused", error.exit_code, str(error)
    except Exception as error:
        traceback.print_exc()
        return "failed", UNEXPECTED, f"{type(error).__name__}: {error}"
    return "done", 0, None


def _set_aside(folder: Path) -> None:
    """What an attempt without a checkpoint left is kept, under another name."""
    if folder.is_dir() and any(folder.iterdir()):
        if in_use(folder):
            raise ResumeError(f"{folder} is in use by another process")
        number = 1
        while (aside := folder.with_name(f"{folder.name}.attempt-{number}")).exists():
            number += 1
        folder.rename(aside)
    folder.mkdir(parents=True, exist_ok=True)


class _Asked:
    """Notes signals that ask to leave, whoever handles them: a job's ranks are told by the one that started them."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Asked:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._outer = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in without_ignored_hangup(
            FORWARDED
        ):  # while there are no ranks to be told, nothing is done but noting it
            self._before[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        self.number()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._outer)
        os.close(self._reading)
        os.close(self._writing)

    def number(self) -> int | None:
        """The first such signal, if there was one."""
        with suppress(BlockingIOError):
            noted = [number for number in os.read(self._reading, 4096) if number in FORWARDED]
            self._number = self._number or next(iter(noted), None)
        return self._number


@contextmanager
def _worker_process(parent: int, prefix: str) -> Iterator[None]:
    """In a launcher's process: every line says which job it is of, and signals come from the sweep alone."""
    if os.getppid() == parent:
        leave_with_parent(parent)
        with suppress(PermissionError):  # Ctrl-C reaches the job once, through the sweep
            os.setpgid(0, 0)
    sys.stdout.flush()
    sys.stderr.flush()
    outer = {stream: os.dup(stream) for stream in (1, 2)}
    copiers = [_copier(stream, outer[stream], prefix) for stream in outer]
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, original in outer.items():
            os.dup2(original, stream)
        for copier in copiers:  # they end with the pipe's last writer, which a process left behind may be
            copier.join(timeout=5.0)


def _copier(stream: int, outer: int, prefix: str) -> threading.Thread:
    reading, writing = os.pipe()
    os.dup2(writing, stream)
    os.close(writing)

    def copy() -> None:
        with open(reading, "rb") as lines:
            for line in lines:
                with suppress(OSError):  # the reader of the output is gone; the job goes on
                    os.write(outer, prefix.encode() + line)
        os.close(outer)

    copier = threading.Thread(target=copy, daemon=True)
    copier.start()
    return copier
