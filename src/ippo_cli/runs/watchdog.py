"""Watchdog: ends a hanging run with exit code 11, writes the stacks of all ranks, and kills child processes.

Every rank counts its progress (`engine/progress.py`) and adds it to a common counter in the rendezvous store, so a
rank that waits for another one does not count as hanging. Idle time is counted in ticks of this rank, so suspending
the whole job does not end it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from ippo_cli.config.errors import HUNG
from ippo_cli.engine import distributed, progress
from ippo_cli.runs.folder import display_path, list_checkpoints, mark_run_failed, resume_command
from ippo_cli.runs.output import print_text

HANG_FLAG = "hangs"
TICKS_PER_LIMIT = 20  # checks within the limit
LONGEST_TICK_S = 5.0
REPORT_TIMEOUT_S = 5.0  # how long the terminal and the disk may take
DUMP_AFTER_LIMITS = 2  # limits after which faulthandler dumps the stacks, for a hang that holds the GIL


def stacks_file(folder: Path, rank: int) -> Path:
    """The stacks file of a hanging rank."""
    return folder / "errors" / f"stacks_rank_{rank}.txt"


class Watchdog:
    """Ends this process if no rank makes progress; runs in two threads, because the main thread may hang."""

    def __init__(self, folder: Path, *, limit_s: float, first_limit_s: float) -> None:
        self.folder = folder
        self._limit, self._first_limit = limit_s, max(limit_s, first_limit_s)
        self._tick = min(LONGEST_TICK_S, limit_s / TICKS_PER_LIMIT)
        self._steps_before = progress.iteration_count()
        self._idle_s = 0.0
        self._last_count = -1  # last progress count of this process
        self._global_count = 0  # last progress count of all ranks in the store
        self._is_stop_requested = False  # by another rank
        self._fired, self._stopped = threading.Event(), threading.Event()
        self._is_reporter = distributed.is_main()  # unless the store assigns another rank
        self._threads = [
            threading.Thread(target=work, name=f"watchdog {name}", daemon=True)
            for name, work in (("looks", self._monitor), ("asks", self._exchange_progress))
        ]

    def __enter__(self) -> Watchdog:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:  # before the process group is destroyed
            thread.join(timeout=2 * self._tick)
        with suppress(OSError):
            stacks_file(self.folder, distributed.rank()).unlink()
            (self.folder / "errors").rmdir()  # fails if it has other files

    @property
    def limit_s(self) -> float:
        """The idle limit; longer before the first iteration completes, because loading may take long."""
        return self._limit if progress.iteration_count() > self._steps_before else self._first_limit

    def _monitor(self) -> None:
        with self._open_stacks_file() as file:
            try:
                self._monitor_until_stopped(file)
            finally:  # otherwise it could write into a file that reuses the descriptor
                faulthandler.cancel_dump_traceback_later()

    def _monitor_until_stopped(self, file: IO[str]) -> None:
        before, everywhere = time.monotonic(), self._global_count
        while not self._stopped.wait(self._tick):
            # Dumps only, without exit=True: it would end a job that was suspended as a whole.
            faulthandler.dump_traceback_later(DUMP_AFTER_LIMITS * self.limit_s, file=file)
            now = time.monotonic()
            count = progress.progress_count()
            if count != self._last_count or everywhere != self._global_count or progress.has_granted_time():
                self._idle_s = 0.0
            else:
                self._idle_s += min(now - before, 2 * self._tick)  # a suspension of the whole job counts little
            before, everywhere, self._last_count = now, self._global_count, count
            if self._idle_s >= self.limit_s or self._is_stop_requested:
                self._abort(file)

    def _open_stacks_file(self) -> IO[str]:
        place = stacks_file(self.folder, distributed.global_rank())
        try:
            place.parent.mkdir(exist_ok=True)
            return place.open("w")
        except OSError:  # fall back to stderr
            return os.fdopen(os.dup(2), "w")

    def _exchange_progress(self) -> None:
        """Exchange progress with the other ranks through the store.

        May block forever if rank 0, which hosts the store, is stopped; nothing waits for this thread.
        """
        last_count = progress.progress_count()
        while not self._stopped.wait(self._tick):
            if self._fired.is_set():
                self._is_reporter = not distributed.set_flag(HANG_FLAG) or distributed.claim_log_once(HANG_FLAG)
                return
            now = progress.progress_count()
            moved = now != last_count or progress.has_granted_time()
            self._global_count, last_count = distributed.add_to_counter("progress", int(moved)), now
            self._is_stop_requested = self._is_stop_requested or distributed.flag_is_set(HANG_FLAG)

    def _abort(self, file: IO[str]) -> None:
        """Write the stacks, wait for the other ranks to write theirs, kill all descendants, and exit."""
        faulthandler.cancel_dump_traceback_later()
        faulthandler.dump_traceback(file, all_threads=True)
        file.flush()
        self._is_reporter = self._is_reporter or distributed.world_group().size > 1  # two reports are better than none
        self._fired.set()
        if distributed.world_group().size > 1:
            time.sleep(4 * self._tick)
        for child in descendants(os.getpid()):
            with suppress(OSError):
                os.kill(child, signal.SIGKILL)
        if self._is_reporter:
            reporter = threading.Thread(target=self._report_hang, daemon=True)
            reporter.start()
            reporter.join(REPORT_TIMEOUT_S)  # the reader of the output may be what hangs
        os._exit(HUNG)

    def _report_hang(self) -> None:
        message = (
            f"no rank made progress for {self.limit_s:g} s (launch.watchdog_s); stack traces are in "
            f"{display_path(self.folder)}/errors/stacks_rank_*.txt"
        )
        mark_run_failed(self.folder, message)
        checkpoints = list_checkpoints(self.folder / "checkpoints")
        resume_hint = f"resume from {checkpoints[-1].name} with: {resume_command(self.folder)}" if checkpoints else ""
        print_text("\n".join(filter(None, [f"ippo: {message}", resume_hint])), to_stderr=True)


surviving_children: set[int] = set()
"""Child processes that exit by themselves when this process is gone."""


def descendants(parent: int) -> list[int]:
    """All descendants of a process, from /proc where it exists, without `surviving_children` and their descendants."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{parent}/task").iterdir():
            children = [int(number) for number in (task / "children").read_text().split()]
            ending = [child for child in children if child not in surviving_children]
            found += [number for child in ending for number in (*descendants(child), child)]
    return found
