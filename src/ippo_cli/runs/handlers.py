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

INTERRUPT_DEBOUNCE_S = 1.0
"""How long after Ctrl-C another one means nothing more."""

_previous_handlers: list[dict[int, Any]] = []  # what stood before each installation in this process, outermost first
_mask = threading.local()  # of the thread that forks


@contextmanager
def handle_signals(numbers: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Handle these signals in this process, from its main thread; children that it forks have the handlers of before.

    A worker that a pool forks could otherwise not be ended: SIGTERM would set a flag that nobody reads there.
    """
    before: dict[int, Any] = {number: signal.signal(number, handler) for number in drop_ignored_sighup(numbers)}
    _previous_handlers.append(before)
    try:
        yield
    finally:
        if any(own is before for own in _previous_handlers):  # in a forked child it has been undone already
            _previous_handlers[:] = [own for own in _previous_handlers if own is not before]
            _restore_handlers(before)


def drop_ignored_sighup(numbers: Sequence[signal.Signals]) -> list[signal.Signals]:
    """The signals without SIGHUP where that is ignored: under nohup a terminal that closes is to change nothing."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in numbers if not (ignored and number == signal.SIGHUP)]


class InterruptCounter:
    """Ctrl-C, once or again: a second one right after the first is the same one, which wrappers pass on twice."""

    def __init__(self) -> None:
        self._first: float | None = None
        self.insisted = False

    def note(self) -> None:
        """Count one."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
        elif now - self._first >= INTERRUPT_DEBOUNCE_S:
            self.insisted = True


def _restore_handlers(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        # None stands for a handler that was not installed from Python, and cannot be installed from it again.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _block_signals() -> None:
    """Signals wait while a child is made: one that came before its handlers are restored would be forgotten."""
    handled = {signal.Signals(number) for before in _previous_handlers for number in before}
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, handled)


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _restore_in_child() -> None:
    for before in reversed(_previous_handlers):
        _restore_handlers(before)
    _previous_handlers.clear()
    _unblock_signals()


os.register_at_fork(before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_restore_in_child)
