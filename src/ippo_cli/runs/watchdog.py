"""A run that does nothing any more ends itself: stacks of all ranks into its folder, exit code 11, nothing left behind.

Every rank counts what it does (`engine/progress.py`) and adds to a count of all of them in the rendezvous store, so
that one that waits for another is not taken for one that hangs. The time of silence is counted in ticks of this rank: a
job that was suspended as a whole goes on where it was.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from ippo_cli.config.errors import HUNG
from ippo_cli.engine import distributed, progress
from ippo_cli.runs.folder import display_path, list_checkpoints, mark_run_failed, resume_command

HANG_FLAG = "hangs"
TICKS_PER_LIMIT = 20  # how often within the limit is looked
LONGEST_TICK_S = 5.0
REPORT_TIMEOUT_S = 5.0  # how long the screen and the disk may take
DUMP_AFTER_LIMITS = (
    2  # limits after which stacks are written where Python's lock is never given back; nothing else can be
)


def stacks_file(folder: Path, rank: int) -> Path:
    """Where a rank that hangs leaves its stacks."""
    return folder / "errors" / f"stacks_rank_{rank}.txt"


class Watchdog:
    """Ends this process where no rank has done anything for a while: threads of their own, as the main one may hang."""

    def __init__(self, folder: Path, *, limit_s: float, first_limit_s: float) -> None:
        self.folder = folder
        self._limit, self._first_limit = limit_s, max(limit_s, first_limit_s)
        self._tick = min(LONGEST_TICK_S, limit_s / TICKS_PER_LIMIT)
        self._steps_before = progress.iteration_count()
        self._idle_s = 0.0
        self._seen = -1  # of this process
        self._global_count = 0  # of all ranks, as far as the store has said
        self._is_stop_requested = False  # by another rank
        self._fired, self._over = threading.Event(), threading.Event()
        self._is_reporter = distributed.is_main()  # unless the store says who
        self._threads = [
            threading.Thread(target=work, name=f"watchdog {name}", daemon=True)
            for name, work in (("looks", self._look), ("asks", self._ask))
        ]

    def __enter__(self) -> Watchdog:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:  # the process group is not to end under them
            thread.join(timeout=2 * self._tick)
        with suppress(OSError):
            stacks_file(self.folder, distributed.rank()).unlink()
            (self.folder / "errors").rmdir()  # unless something else is there

    @property
    def limit_s(self) -> float:
        """Longer until an iteration is done: what is done once, such as loading, may say nothing for long."""
        return self._limit if progress.iteration_count() > self._steps_before else self._first_limit

    def _look(self) -> None:
        with self._open_stacks_file() as file:
            try:
                self._monitor_until_stopped(file)
            finally:  # it would write into whatever has the file's number then
                faulthandler.cancel_dump_traceback_later()

    def _monitor_until_stopped(self, file: IO[str]) -> None:
        before, everywhere = time.monotonic(), self._global_count
        while not self._over.wait(self._tick):
            # It cannot end the process: after a job was suspended as a whole it would.
            faulthandler.dump_traceback_later(DUMP_AFTER_LIMITS * self.limit_s, file=file)
            now = time.monotonic()
            count = progress.progress_count()
            if count != self._seen or everywhere != self._global_count or progress.has_granted_time():
                self._idle_s = 0.0
            else:
                self._idle_s += min(now - before, 2 * self._tick)  # of a job that slept as a whole little counts
            before, everywhere, self._seen = now, self._global_count, count
            if self._idle_s >= self.limit_s or self._is_stop_requested:
                self._end(file)

    def _open_stacks_file(self) -> IO[str]:
        place = stacks_file(self.folder, distributed.rank())
        try:
            place.parent.mkdir(exist_ok=True)
            return place.open("w")
        except OSError:  # better on the screen than nowhere
            return os.fdopen(os.dup(2), "w")

    def _ask(self) -> None:
        """Tell the other ranks what this one does and hear what they do. It may wait without end for a rank 0 that is
        stopped, which keeps the store: nobody waits for this thread."""
        last_count = progress.progress_count()
        while not self._over.wait(self._tick):
            if self._fired.is_set():
                self._is_reporter = not distributed.set_flag(HANG_FLAG) or distributed.claim_log_once(HANG_FLAG)
                return
            now = progress.progress_count()
            moved = now != last_count or progress.has_granted_time()
            self._global_count, last_count = distributed.add_to_counter("progress", int(moved)), now
            self._is_stop_requested = self._is_stop_requested or distributed.flag_is_set(HANG_FLAG)

    def _end(self, file: IO[str]) -> None:
        """Write the stacks, wait until the others have done so too, and leave with everything that was started."""
        faulthandler.cancel_dump_traceback_later()
        faulthandler.dump_traceback(file, all_threads=True)
        file.flush()
        self._is_reporter = self._is_reporter or distributed.world_size() > 1  # better twice than never
        self._fired.set()
        if distributed.world_size() > 1:
            time.sleep(4 * self._tick)
        for child in descendants(os.getpid()):
            with suppress(OSError):
                os.kill(child, signal.SIGKILL)
        if self._is_reporter:
            telling = threading.Thread(target=self._tell, daemon=True)
            telling.start()
            telling.join(REPORT_TIMEOUT_S)  # whoever reads what is printed may be what hangs
        os._exit(HUNG)

    def _tell(self) -> None:
        message = (
            f"no rank has done anything for {self.limit_s:g} s (launch.watchdog_s); where each of them stood is in "
            f"{display_path(self.folder)}/errors/stacks_rank_*.txt"
        )
        mark_run_failed(self.folder, message)
        checkpoints = list_checkpoints(self.folder / "checkpoints")
        resume_hint = f"to go on from {checkpoints[-1].name}: {resume_command(self.folder)}" if checkpoints else ""
        print("\n".join(filter(None, [f"ippo: {message}", resume_hint])), file=sys.stderr, flush=True)


surviving_children: set[int] = set()
"""Processes that this one has started, and that end by themselves once it is gone."""


def descendants(parent: int) -> list[int]:
    """The processes that this one has started, and those that they have, as far as the system says; but for those that
    are `surviving_children`."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{parent}/task").iterdir():
            children = [int(number) for number in (task / "children").read_text().split()]
            ending = [child for child in children if child not in surviving_children]
            found += [number for child in ending for number in (*descendants(child), child)]
    return found
