"""Runs a function over many items, in threads if the items are slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

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
