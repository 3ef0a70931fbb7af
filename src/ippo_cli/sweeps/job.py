"""Runs one job of a sweep in the process of any launcher: starts its ranks and updates its row in `sweep.json`."""

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

from ippo_cli.compose.exits import format_block, indent_lines
from ippo_cli.compose.former_keys import set_values
from ippo_cli.compose.load import build_config, iter_leaves, resolve_config, to_yaml
from ippo_cli.compose.resume import check_resume_config, config_changes, find_earlier_defaults
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import INTERRUPTED, UNEXPECTED, ConfigError, IppoError, Preempted, ResumeError
from ippo_cli.config.schema import Config
from ippo_cli.engine import launchers
from ippo_cli.runs.folder import (
    START_LOCK,
    check_world_size,
    display_path,
    is_run_locked,
    list_checkpoints,
    lock_folder,
    print_warning,
    write_start_files,
)
from ippo_cli.runs.handlers import drop_ignored_sighup
from ippo_cli.runs.input_files import changed_input_warnings, input_files, record_inputs
from ippo_cli.runs.launch import FORWARDED, RankFailure, run_ranks
from ippo_cli.runs.output import print_text
from ippo_cli.runs.parent import terminate_with_parent
from ippo_cli.sweeps import folder as sweep_folder
from ippo_cli.sweeps.folder import STOP_FILE, JobRow, overrides_without_threads, read_rows, update_row

PREEMPTED_CODES = (Preempted.exit_code, INTERRUPTED)
SCHEDULER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)  # sent before a time limit; SIGTERM means that the job must end


@dataclass(frozen=True, slots=True)
class SweepContext:
    """The data of a sweep that its jobs need."""

    folder: Path
    host: str  # host of the process of the sweep
    process: int  # pid of that process
    command: tuple[str, ...]
    folders: tuple[str, ...]  # overrides of hydra.searchpath
    resumed: bool
    total: int | None  # number of jobs; None if a sweeper generates them while it runs
    attempt: str = ""  # name of the attempt; queued jobs of an older attempt exit without training


def run_job(context: SweepContext, node: DictConfig) -> float:
    """Train one job and update its row: the function that a Hydra launcher calls. Returns the last score."""
    hydra = HydraConfig.get()
    subdir, texts = str(hydra.sweep.subdir), [str(text) for text in hydra.overrides.task]
    row = next(
        (row for row in read_rows(context.folder) if row.folder == subdir), JobRow(int(hydra.job.num), texts, subdir)
    )
    return train_row(context, replace(row, overrides=texts), lambda: resolve_config(node))


def train_row(context: SweepContext, row: JobRow, compose: Callable[[], dict[str, Any]]) -> float:
    """Train the job of a row with the configuration that `compose` returns, and update the row.

    Returns the last score; NaN if the sweep is stopping, if the job belongs to an older attempt, or without a score.
    """
    subdir, texts = row.folder, row.overrides
    rows = read_rows(context.folder)
    folder = context.folder / subdir
    is_sweep_process = (socket.gethostname(), os.getpid()) == (context.host, context.process)
    if (context.folder / STOP_FILE).exists():
        return float("nan")
    if sweep_folder.read_attempt(context.folder) != context.attempt:
        print_text(f"job {row.job} belongs to an older attempt of this sweep; exiting")
        return float("nan")
    if sweep_folder.is_done(folder):  # completed while this job was in a scheduler's queue
        with update_row(context.folder, row.job) as saved_row:
            sweep_folder.set_state(saved_row, "done", 0, None)
            sweep_folder.copy_run_result(saved_row, folder)
        return _last_score(saved_row)
    own = sweep_folder.distinct_overrides(rows).get(row.job) or " ".join(texts)
    name = f"job {row.job} of {context.total}" if context.total else f"job {row.job}"
    tag = f"[{row.job}/{context.total}]" if context.total else f"[{row.job}]"
    with ExitStack() as held:
        if not is_sweep_process:
            held.enter_context(_worker_process(context.process, f"{tag} "))
        recorder = held.enter_context(_SignalRecorder())
        print_text(f"{tag if is_sweep_process else 'starting:'} {own} -> {display_path(folder)}")
        with update_row(context.folder, row.job) as saved_row:
            saved_row.overrides, saved_row.folder = texts, subdir
            sweep_folder.mark_running(saved_row)
        state, code, error = _train_outcome(lambda: _train(context, row, compose(), folder, recorder), folder)
        left_by = recorder.first_signal()
        if left_by is not None and code not in (
            0,
            *PREEMPTED_CODES,
        ):  # the signal kills a rank that cannot save yet
            state, error = "preempted", None
        if left_by is not None and code != 0:
            code = INTERRUPTED if left_by == signal.SIGINT else Preempted.exit_code
        if read_row(context.folder, row.job).pruned_at is not None and state in ("preempted", "done"):
            state, code, error = "pruned", 0, None  # also if it completed before it received the signal
        by_scheduler = (
            left_by is None or left_by in SCHEDULER_SIGNALS
        )  # None: the rank stopped before the time limit without a signal
        requeues = code == Preempted.exit_code and by_scheduler and launchers.should_requeue(os.environ)
        with update_row(context.folder, row.job) as saved_row:
            sweep_folder.set_state(saved_row, "waiting" if requeues else state, code, error)
            saved_row.slurm = launchers.submitted_job(os.environ) if requeues else None
            sweep_folder.copy_run_result(saved_row, folder)
        if error is not None:
            print_text(format_block(indent_lines(f"ippo: {name}: {own}: {error}")), to_stderr=True)
    if requeues:
        if launchers.requeue(os.environ):
            raise SystemExit(code)  # without a result: the launcher waits for that of the requeued job
        with update_row(context.folder, row.job) as saved_row:
            sweep_folder.set_state(saved_row, state, code, "SLURM could not requeue its job")
    if is_sweep_process and (left_by is not None or code in PREEMPTED_CODES):
        number = left_by or (signal.SIGINT if code == INTERRUPTED else signal.SIGTERM)
        (context.folder / STOP_FILE).write_text(str(int(number)))
    return _last_score(saved_row)


def read_row(folder: Path, job: int) -> JobRow:
    """The row of a job in `sweep.json`; an empty row if there is none."""
    return next((row for row in read_rows(folder) if row.job == job), JobRow(job, [], ""))


def _last_score(row: JobRow) -> float:
    return row.score.get("last", {}).get("score", float("nan"))


def _train(context: SweepContext, row: JobRow, plain: dict[str, Any], folder: Path, recorder: _SignalRecorder) -> None:
    may_resume = context.resumed or launchers.restart_count(os.environ) > 0 or row.parent is not None
    resumed = may_resume and bool(list_checkpoints(folder / "checkpoints"))
    overrides = [*context.folders, *row.overrides]
    if resumed:
        earlier = find_earlier_defaults(folder, overrides)
        overrides = [*(f"{key}={value}" for key, value in earlier.items()), *overrides]
        set_values(plain, earlier)
    config = build_config(plain)
    check_config(config, config.launch.processes)
    if launchers.external_world_size() is not None:
        raise ConfigError(
            "hydra.launcher",
            "starts several tasks per job, and a job starts its ranks itself",
            "use one task per job and launch.processes=N",
        )
    inputs = input_files(config)
    if resumed:
        check_job_resume(folder, plain, config)
        for line in changed_input_warnings(folder, inputs):
            print_warning(line)
        for change in config_changes(folder, dict(iter_leaves(plain))):
            print_text(change)
    else:
        archive_attempt(folder)
    with lock_folder(folder, name=START_LOCK):
        write_start_files(folder, to_yaml(plain), overrides, context.command, resumed=resumed)
        record_inputs(folder, inputs, resumed=resumed)
        if recorder.first_signal() is not None:
            raise Preempted("received a signal before training started")
        run_ranks(folder, config.launch.processes, resumed=resumed)


def prepare_resume(sweep: Path, row: JobRow) -> bool:
    """Whether a job has a checkpoint to resume from. If not, remove the number of threads that the sweep assigned.

    A job with a checkpoint keeps its number of threads, because another number changes rounding. Raises `ResumeError`
    if SLURM still runs the job. A requeued SLURM job of an older attempt exits when it starts.
    """
    if row.slurm is not None and (launchers.queue_states([row.slurm]) or {}).get(row.slurm, "PENDING") != "PENDING":
        raise ResumeError(
            f"{row.folder} is being trained by SLURM job {row.slurm}; wait for it, or end it with scancel {row.slurm}"
        )
    begun = bool(list_checkpoints(sweep / row.folder / "checkpoints"))
    if not begun:
        row.overrides, row.threads = overrides_without_threads(row), None
    return begun


def check_job_resume(folder: Path, plain: dict[str, Any], config: Config) -> None:
    """Raise `ResumeError` if the run of a job is in use or cannot be resumed with this configuration."""
    if folder.is_dir() and is_run_locked(folder):
        raise ResumeError(f"{folder} is in use by another process")
    checkpoints = list_checkpoints(folder / "checkpoints")
    if checkpoints:
        check_resume_config(folder, dict(iter_leaves(plain)))
        if not config.checkpoint.reshard:
            check_world_size(checkpoints[-1], config.launch.processes)


def _train_outcome(train: Callable[[], None], folder: Path) -> tuple[str, int, str | None]:
    """Call `train` and return state, exit code and error message of the job."""
    before = sweep_folder.read_run(folder)
    try:
        train()
    except RankFailure as error:
        if error.exit_code in PREEMPTED_CODES:
            return "preempted", error.exit_code, None
        known = sweep_folder.read_run(folder)  # has a better message if this attempt wrote it
        run_error = known.get("error") if known != before else None
        return "failed", error.exit_code, str(run_error or error)
    except Preempted as error:
        return "waiting", error.exit_code, None
    except IppoError as error:
        return "refused", error.exit_code, str(error)
    except Exception as error:
        traceback.print_exc()
        return "failed", UNEXPECTED, f"{type(error).__name__}: {error}"
    return "done", 0, None


def archive_attempt(folder: Path) -> None:
    """Rename the folder of an attempt that has no checkpoint, and create an empty one."""
    if folder.is_dir() and any(folder.iterdir()):
        if is_run_locked(folder):
            raise ResumeError(f"{folder} is in use by another process")
        number = 1
        while (aside := folder.with_name(f"{folder.name}.attempt-{number}")).exists():
            number += 1
        folder.rename(aside)
    folder.mkdir(parents=True, exist_ok=True)


class _SignalRecorder:
    """Records termination signals, independent of the installed handlers, through `signal.set_wakeup_fd`.

    `run_ranks` installs handlers that forward signals to the ranks; outside of it the signals are only recorded.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _SignalRecorder:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._outer = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in drop_ignored_sighup(FORWARDED):  # without ranks there is nothing to forward
            self._before[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        self.first_signal()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._outer)
        os.close(self._reading)
        os.close(self._writing)

    def first_signal(self) -> int | None:
        """The first recorded signal, or None."""
        with suppress(BlockingIOError):
            received = [number for number in os.read(self._reading, 4096) if number in FORWARDED]
            self._number = self._number or next(iter(received), None)
        return self._number


@contextmanager
def _worker_process(parent: int, prefix: str) -> Iterator[None]:
    """In the process of a launcher: prefix each output line with the job, and leave the terminal's process group."""
    if os.getppid() == parent:
        terminate_with_parent(parent)
        with suppress(PermissionError):  # so that Ctrl-C reaches the job only once, through the sweep
            os.setpgid(0, 0)
    sys.stdout.flush()
    sys.stderr.flush()
    outer = {stream: os.dup(stream) for stream in (1, 2)}
    copiers = [_start_copier(stream, outer[stream], prefix) for stream in outer]
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, original in outer.items():
            os.dup2(original, stream)
        for copier in copiers:  # a remaining child process may keep the pipe open
            copier.join(timeout=5.0)


def _start_copier(stream: int, outer: int, prefix: str) -> threading.Thread:
    reading, writing = os.pipe()
    os.dup2(writing, stream)
    os.close(writing)

    def copy() -> None:
        with open(reading, "rb") as lines:
            for line in lines:
                with suppress(OSError):  # the output was closed; the job continues
                    os.write(outer, prefix.encode() + line)
        os.close(outer)

    copier = threading.Thread(target=copy, daemon=True)
    copier.start()
    return copier
