"""Heartbeat counter for the watchdog: tokens, micro-batches, reward results, bytes.

Imports nothing, since the innermost loops call it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_count = 0
_steps = 0
_granted_until: list[float] = []  # on the monotonic clock: ends of operations with their own time limit
_open_writes = 0  # number of large files being written


def heartbeat() -> None:
    """Count one unit of progress."""
    global _count
    _count += 1


def record_iteration() -> None:
    """Count a finished training iteration."""
    global _steps
    _steps += 1
    heartbeat()


def iteration_count() -> int:
    """Number of finished iterations of this process."""
    return _steps


def progress_count() -> int:
    """Progress of this process so far; while files are written, bytes count as well."""
    return _count + (_io_bytes() if _open_writes else 0)


@contextmanager
def grant_time(seconds: float) -> Iterator[None]:
    """Treat the code inside as making progress for up to its own time limit."""
    until = time.monotonic() + seconds
    _granted_until.append(until)
    try:
        yield
    finally:
        _granted_until.remove(until)
        heartbeat()


def has_granted_time() -> bool:
    """Whether code with an unexpired time limit of its own is running."""
    return any(time.monotonic() < until for until in list(_granted_until))


@contextmanager
def track_written_bytes() -> Iterator[None]:
    """Count bytes while large files are written, since one file may take minutes."""
    global _open_writes
    _open_writes += 1
    try:
        yield
    finally:
        _open_writes -= 1
        heartbeat()


def _io_bytes() -> int:
    """Bytes that this process has written and read (for verification); 0 if the system does not report them."""
    try:
        with open("/proc/self/io") as file:
            fields = dict(line.split(":") for line in file)
    except (OSError, ValueError):
        return 0
    return int(fields.get("wchar", 0)) + int(fields.get("rchar", 0))
