"""Signal handlers that forked children do not inherit. Imports no torch: the process that starts ranks has them too."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], None]

SAME_INTERRUPT_S = 1.0
"""How long after Ctrl-C another one means nothing more."""

_replaced: list[dict[int, Any]] = []  # what stood before each installation in this process, outermost first
_mask = threading.local()  # of the thread that forks


@contextmanager
def handling(numbers: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Handle these signals in this process, from its main thread; children that it forks have the handlers of before.

    A worker that a pool forks could otherwise not be ended: SIGTERM would set a flag that nobody reads there.
    """
    before: dict[int, Any] = {number: signal.signal(number, handler) for number in without_ignored_hangup(numbers)}
    _replaced.append(before)
    try:
        yield
    finally:
        if any(own is before for own in _replaced):  # in a forked child it has been undone already
            _replaced[:] = [own for own in _replaced if own is not before]
            _restore(before)


def without_ignored_hangup(numbers: Sequence[signal.Signals]) -> list[signal.Signals]:
    """The signals without SIGHUP where that is ignored: under nohup a terminal that closes is to change nothing."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in numbers if not (ignored and number == signal.SIGHUP)]


class Interrupts:
    """Ctrl-C, once or again: a second one right after the first is the same one, which wrappers pass on twice."""

    def __init__(self) -> None:
        self._first: float | None = None
        self.insisted = False

    def note(self) -> None:
        """Count one."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
        elif now - self._first >= SAME_INTERRUPT_S:
            self.insisted = True


def _restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        # None stands for a handler that was not installed from Python, and cannot be installed from it again.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _block() -> None:
    """Signals wait while a child is made: one that came before its handlers are restored would be forgotten."""
    handled = {signal.Signals(number) for before in _replaced for number in before}
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, handled)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _restore_in_child() -> None:
    for before in reversed(_replaced):
        _restore(before)
    _replaced.clear()
    _unblock()


os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_restore_in_child)
