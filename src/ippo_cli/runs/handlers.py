"""Signal handlers that forked children do not inherit. Does not import torch: the launcher process uses them too."""

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
"""A second Ctrl-C within this time is ignored."""

_previous_handlers: list[dict[int, Any]] = []  # handlers replaced by each installation, outermost first
_mask = threading.local()  # signal mask of the thread that forks


@contextmanager
def handle_signals(numbers: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Handle these signals in this process; call it in the main thread. Forked children get the previous handlers.

    Otherwise a pool's forked worker could not be terminated: SIGTERM would only set a flag that the worker never reads.
    """
    before: dict[int, Any] = {number: signal.signal(number, handler) for number in drop_ignored_sighup(numbers)}
    _previous_handlers.append(before)
    try:
        yield
    finally:
        if any(own is before for own in _previous_handlers):  # a forked child has already restored them
            _previous_handlers[:] = [own for own in _previous_handlers if own is not before]
            _restore_handlers(before)


def drop_ignored_sighup(numbers: Sequence[signal.Signals]) -> list[signal.Signals]:
    """The signals, without SIGHUP if it is ignored: under nohup, a closed terminal must not end the run."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in numbers if not (ignored and number == signal.SIGHUP)]


class InterruptCounter:
    """Detects a second Ctrl-C; one right after the first is ignored, because wrappers forward the same one twice."""

    def __init__(self) -> None:
        self._first_at: float | None = None
        self.is_repeated = False

    def record(self) -> None:
        """Record one Ctrl-C."""
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
        elif now - self._first_at >= INTERRUPT_DEBOUNCE_S:
            self.is_repeated = True


def _restore_handlers(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        # None: the handler was not installed from Python and cannot be reinstalled.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _block_signals() -> None:
    """Block signals during a fork: a signal before the child restores its handlers would be lost."""
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
