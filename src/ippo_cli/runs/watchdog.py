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
from ippo_cli.runs.folder import all_checkpoints, from_here, mark_failed, resume_command

NOTICE = "hangs"
TICKS_OF_LIMIT = 20  # how often within the limit is looked
LONGEST_TICK_S = 5.0
TELLING_S = 5.0  # how long the screen and the disk may take
SILENT_LIMITS = 2  # limits after which stacks are written where Python's lock is never given back; nothing else can be


def stacks_file(folder: Path, rank: int) -> Path:
    """Where a rank that hangs leaves its stacks."""
    return folder / "errors" / f"stacks_rank_{rank}.txt"


class Watchdog:
    """Ends this process where no rank has done anything for a while: threads of their own, as the main one may hang."""

    def __init__(self, folder: Path, *, limit_s: float, first_limit_s: float) -> None:
        self.folder = folder
        self._limit, self._first_limit = limit_s, max(limit_s, first_limit_s)
        self._tick = min(LONGEST_TICK_S, limit_s / TICKS_OF_LIMIT)
        self._steps_before = progress.steps()
        self._silent_s = 0.0
        self._seen = -1  # of this process
        self._everywhere = 0  # of all ranks, as far as the store has said
        self._told_to_end = False  # by another rank
        self._fired, self._over = threading.Event(), threading.Event()
        self._tells = distributed.is_main()  # unless the store says who
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
        return self._limit if progress.steps() > self._steps_before else self._first_limit

    def _look(self) -> None:
        with self._stacks() as file:
            try:
                self._until_over(file)
            finally:  # it would write into whatever has the file's number then
                faulthandler.cancel_dump_traceback_later()

    def _until_over(self, file: IO[str]) -> None:
        before, everywhere = time.monotonic(), self._everywhere
        while not self._over.wait(self._tick):
            # It cannot end the process: after a job was suspended as a whole it would.
            faulthandler.dump_traceback_later(SILENT_LIMITS * self.limit_s, file=file)
            now = time.monotonic()
            count = progress.count()
            if count != self._seen or everywhere != self._everywhere or progress.allowed():
                self._silent_s = 0.0
            else:
                self._silent_s += min(now - before, 2 * self._tick)  # of a job that slept as a whole little counts
            before, everywhere, self._seen = now, self._everywhere, count
            if self._silent_s >= self.limit_s or self._told_to_end:
                self._end(file)

    def _stacks(self) -> IO[str]:
        place = stacks_file(self.folder, distributed.rank())
        try:
            place.parent.mkdir(exist_ok=True)
            return place.open("w")
        except OSError:  # better on the screen than nowhere
            return os.fdopen(os.dup(2), "w")

    def _ask(self) -> None:
        """Tell the other ranks what this one does and hear what they do. It may wait without end for a rank 0 that is
        stopped, which keeps the store: nobody waits for this thread."""
        told = progress.count()
        while not self._over.wait(self._tick):
            if self._fired.is_set():
                self._tells = not distributed.announce(NOTICE) or distributed.first_to_say(NOTICE)
                return
            now = progress.count()
            moved = now != told or progress.allowed()
            self._everywhere, told = distributed.counted("progress", int(moved)), now
            self._told_to_end = self._told_to_end or distributed.announced(NOTICE)

    def _end(self, file: IO[str]) -> None:
        """Write the stacks, wait until the others have done so too, and leave with everything that was started."""
        faulthandler.cancel_dump_traceback_later()
        faulthandler.dump_traceback(file, all_threads=True)
        file.flush()
        self._tells = self._tells or distributed.world_size() > 1  # better twice than never
        self._fired.set()
        if distributed.world_size() > 1:
            time.sleep(4 * self._tick)
        for child in descendants(os.getpid()):
            with suppress(OSError):
                os.kill(child, signal.SIGKILL)
        if self._tells:
            telling = threading.Thread(target=self._tell, daemon=True)
            telling.start()
            telling.join(TELLING_S)  # whoever reads what is printed may be what hangs
        os._exit(HUNG)

    def _tell(self) -> None:
        said = (
            f"no rank has done anything for {self.limit_s:g} s (launch.watchdog_s); where each of them stood is in "
            f"{from_here(self.folder)}/errors/stacks_rank_*.txt"
        )
        mark_failed(self.folder, said)
        there = all_checkpoints(self.folder / "checkpoints")
        left = f"to go on from {there[-1].name}: {resume_command(self.folder)}" if there else ""
        print("\n".join(filter(None, [f"ippo: {said}", left])), file=sys.stderr, flush=True)


outliving: set[int] = set()
"""Processes that this one has started, and that end by themselves once it is gone."""


def descendants(parent: int) -> list[int]:
    """The processes that this one has started, and those that they have, as far as the system says; but for those that
    are `outliving`."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{parent}/task").iterdir():
            children = [int(number) for number in (task / "children").read_text().split()]
            ending = [child for child in children if child not in outliving]
            found += [number for child in ending for number in (*descendants(child), child)]
    return found
