"""That something was done: a count that a watchdog looks at. Tokens, micro-batches, answers of rewards, bytes.

Imports nothing: what counts is in the innermost loops.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_count = 0
_steps = 0
_allowed_until: list[float] = []  # on the monotonic clock: ends of what has a limit of its own
_writing = 0  # how many are writing large files just now


def made() -> None:
    """Something was done that would not be done for ever."""
    global _count
    _count += 1


def step_made() -> None:
    """A whole iteration of training was done."""
    global _steps
    _steps += 1
    made()


def steps() -> int:
    """Iterations that this process has done."""
    return _steps


def count() -> int:
    """How much this process has done so far; where files are being written, bytes count as well."""
    return _count + (_bytes_moved() if _writing else 0)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What is called inside has a limit of its own: up to then it counts as going on, however silent it is."""
    until = time.monotonic() + seconds
    _allowed_until.append(until)
    try:
        yield
    finally:
        _allowed_until.remove(until)
        made()


def allowed() -> bool:
    """Whether this process is inside of something whose own limit has not been reached."""
    return any(time.monotonic() < until for until in list(_allowed_until))


@contextmanager
def writing() -> Iterator[None]:
    """Large files are written inside: their bytes count, as one of them may take minutes."""
    global _writing
    _writing += 1
    try:
        yield
    finally:
        _writing -= 1
        made()


def _bytes_moved() -> int:
    """What this process has written and, to see what it wrote, read; 0 where the system does not say."""
    try:
        with open("/proc/self/io") as file:
            fields = dict(line.split(":") for line in file)
    except (OSError, ValueError):
        return 0
    return int(fields.get("wchar", 0)) + int(fields.get("rchar", 0))
