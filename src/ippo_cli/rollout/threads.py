"""Runs a function over many items, in threads if the items are slow."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ippo_cli.engine import progress

T = TypeVar("T")

SERIAL_TIME_S = 0.02
"""Items that finish within this time run without threads, which would cost more than they save."""
SLOW_ITEM_S = 0.001
"""Below this duration an item computes rather than waits, and Python threads do not compute in parallel."""
POLL_S = 0.2


def map_in_threads(
    items: Sequence[T], work: Callable[[T], None], workers: int, poll: Callable[[], None] | None = None
) -> None:
    """Call `work` for every item, up to `workers` at once if they are slow. Raises the first exception.

    If `poll` raises, running threads are abandoned; they do not keep the process alive.
    """
    waiting = iter(items)
    began = time.perf_counter()
    for number, item in enumerate(waiting, 1):
        work(item)
        progress.heartbeat()
        if poll is not None:
            poll()
        if workers > 1 and time.perf_counter() - began > max(SERIAL_TIME_S, number * SLOW_ITEM_S):
            break
    _run_threads(list(waiting), work, workers, poll)


def _run_threads(items: Sequence[T], work: Callable[[T], None], workers: int, poll: Callable[[], None] | None) -> None:
    errors: dict[int, BaseException] = {}
    numbers = iter(range(len(items)))
    lock, stop = threading.Lock(), threading.Event()

    def run() -> None:
        while not stop.is_set():
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                work(items[number])
                progress.heartbeat()
            except BaseException as error:
                errors[number] = error
                stop.set()

    threads = [threading.Thread(target=run, name="environment", daemon=True) for _ in range(min(workers, len(items)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(POLL_S)
                if poll is not None:
                    poll()
    finally:
        stop.set()
    if errors:
        raise errors[min(errors)]


class TaskThreads(Generic[T]):
    """Runs tasks of items in up to `workers` daemon threads; with one worker they run when they are submitted.

    An exception is raised by the next `take_finished`. Threads that `close` abandons do not keep the process alive.
    """

    def __init__(self, workers: int) -> None:
        self._waiting: queue.SimpleQueue[tuple[T, Callable[[], None]] | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[tuple[T, BaseException | None]] = queue.SimpleQueue()
        self._workers, self._threads = workers, 0
        self._unfinished = 0

    @property
    def is_busy(self) -> bool:
        """Whether there are items that `take_finished` has not returned yet."""
        return self._unfinished > 0

    def submit(self, item: T, work: Callable[[], None]) -> None:
        self._unfinished += 1
        if self._workers == 1:
            self._run(item, work)
            return
        self._waiting.put((item, work))
        if self._threads < min(self._workers, self._unfinished):
            self._threads += 1
            threading.Thread(target=self._serve, name="environment", daemon=True).start()

    def take_finished(self, *, wait: bool) -> list[T]:
        """The items with work that has ended since the last call; `wait`: for the first one, at most `POLL_S`."""
        items: list[T] = []
        while self._unfinished:
            try:
                item, error = self._finished.get(wait and not items, POLL_S)
            except queue.Empty:
                break
            self._unfinished -= 1
            progress.heartbeat()
            if error is not None:
                raise error
            items.append(item)
        return items

    def close(self) -> None:
        """End idle threads, and busy ones after their item."""
        for _ in range(self._threads):
            self._waiting.put(None)

    def _serve(self) -> None:
        while (task := self._waiting.get()) is not None:
            self._run(*task)

    def _run(self, item: T, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._finished.put((item, error))
        else:
            self._finished.put((item, None))
