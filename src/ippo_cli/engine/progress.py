"""That something was done: a count that a watchdog looks at. Tokens, micro-batches, answers of rewards, bytes.

Imports nothing: what counts is in the innermost loops.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_count = 0
_steps = 0
_granted_until: list[float] = []  # on the monotonic clock: ends of what has a limit of its own
_open_writes = 0  # how many are writing large files just now


def heartbeat() -> None:
    """Something was done that would not be done for ever."""
    global _count
    _count += 1


def record_iteration() -> None:
    """A whole iteration of training was done."""
    global _steps
    _steps += 1
    heartbeat()


def iteration_count() -> int:
    """Iterations that this process has done."""
    return _steps


def progress_count() -> int:
    """How much this process has done so far; where files are being written, bytes count as well."""
    return _count + (_io_bytes() if _open_writes else 0)


@contextmanager
def grant_time(seconds: float) -> Iterator[None]:
    """What is called inside has a limit of its own: up to then it counts as going on, however silent it is."""
    until = time.monotonic() + seconds
    _granted_until.append(until)
    try:
        yield
    finally:
        _granted_until.remove(until)
        heartbeat()


def has_granted_time() -> bool:
    """Whether this process is inside of something whose own limit has not been reached."""
    return any(time.monotonic() < until for until in list(_granted_until))


@contextmanager
def track_written_bytes() -> Iterator[None]:
    """Large files are written inside: their bytes count, as one of them may take minutes."""
    global _open_writes
    _open_writes += 1
    try:
        yield
    finally:
        _open_writes -= 1
        heartbeat()


def _io_bytes() -> int:
    """What this process has written and, to see what it wrote, read; 0 where the system does not say."""
    try:
        with open("/proc/self/io") as file:
            fields = dict(line.split(":") for line in file)
    except (OSError, ValueError):
        return 0
    return int(fields.get("wchar", 0)) + int(fields.get("rchar", 0))
