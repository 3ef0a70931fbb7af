"""Preemption: signals set a flag, and all ranks agree on it at common points.

A scheduler may signal one rank only. That rank sets a flag in the store; the other ranks poll it every
`WATCH_INTERVAL_S`, so each rank can also stop during long generations. All ranks meet where the abandoned work ends.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import wraps
from types import FrameType
from typing import ParamSpec, TypeVar

from ippo_cli.config.errors import PreemptionRequested
from ippo_cli.engine import distributed, progress
from ippo_cli.runs.handlers import InterruptCounter, handle_signals

P = ParamSpec("P")
T = TypeVar("T")

HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
TIME_LIMIT_SIGNAL = signal.SIGALRM  # marks a time limit; never sent
REWARD_GRACE_S = 10.0
"""How long a running reward call may continue after the signal."""
WATCH_INTERVAL_S = 0.5
PREEMPTION_FLAG = "asked to leave"


class PreemptionHandler:
    """Tracks preemption requests on any rank. A second Ctrl-C exits immediately.

    Signals are handled until `scope` closes, which may be after this handler exits: a signal during the cleanup of a
    finished run must not change its result.
    """

    def __init__(self, scope: ExitStack | None = None) -> None:
        self.received_signal: signal.Signals | None = None  # that this rank received
        self.on_preemption: Callable[[str], None] | None = None  # called once, in the watch thread, with the sender
        self._is_requested_remotely = False  # whether another rank has set the flag
        self._is_announced = False
        self._is_reported = False
        self._interrupts = InterruptCounter()
        self._requested_at = 0.0
        self._is_calling_reward = False
        self.deadline = math.inf  # seconds since 1970, at which this rank requests preemption itself
        self._exit_stack = ExitStack()  # closed with this handler; used if no `scope` is given
        self._handler_scope = scope or self._exit_stack
        self._stopped = threading.Event()
        self._watch_thread = threading.Thread(target=self._watch, name="preemption", daemon=True)

    def __enter__(self) -> PreemptionHandler:
        self._handler_scope.enter_context(handle_signals(HANDLED_SIGNALS, self._handle_signal))
        self._watch_thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._exit_stack.close()
        self._watch_thread.join(timeout=2 * WATCH_INTERVAL_S)  # before the process group is destroyed

    @property
    def is_requested(self) -> bool:
        """Whether this rank knows of a request; other ranks may not know it yet."""
        return self.received_signal is not None or self._is_requested_remotely

    def raise_if_requested(self) -> None:
        """Raise `PreemptionRequested` if this rank knows of a request.

        For use between decode steps, inside `distributed.synchronize_errors`, which raises on all ranks.
        """
        if self.is_requested:
            raise PreemptionRequested

    def raise_if_any_rank_requested(self) -> None:
        """Raise `PreemptionRequested` on all ranks if any rank knows of a request. Collective."""
        if distributed.any_rank(self.is_requested):
            raise PreemptionRequested

    def request_stop(self) -> None:
        """Request preemption because the time limit is reached."""
        self._record_request(TIME_LIMIT_SIGNAL)

    @property
    def is_out_of_time(self) -> bool:
        """Whether this rank requested preemption because of the time limit."""
        return self.received_signal is TIME_LIMIT_SIGNAL

    @property
    def is_interrupted(self) -> bool:
        return self.received_signal is signal.SIGINT

    @property
    def is_interrupted_twice(self) -> bool:
        """Whether Ctrl-C was pressed a second time."""
        return self._interrupts.is_repeated

    def make_interruptible(self, reward: Callable[P, T]) -> Callable[P, T]:
        """Wrap a reward so that a call raises `PreemptionRequested` if it runs `REWARD_GRACE_S` after the signal.

        Call it in the main thread. Otherwise a reward whose worker processes died of the same signal blocks forever.
        """

        @wraps(reward, updated=())
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            self._is_calling_reward = True
            try:
                return reward(*args, **kwargs)
            finally:
                self._is_calling_reward = False
                progress.heartbeat()

        return wrapper

    def _handle_signal(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._interrupts.record()
        if self.is_interrupted_twice:
            raise KeyboardInterrupt
        if self._is_reward_overdue():
            raise PreemptionRequested
        self._record_request(signal.Signals(number))

    def _record_request(self, by: signal.Signals) -> None:
        if self.received_signal is None:
            self._requested_at = self._requested_at if self._is_requested_remotely else time.monotonic()
            self.received_signal = by

    def _is_reward_overdue(self) -> bool:
        return self.is_requested and self._is_calling_reward and time.monotonic() - self._requested_at >= REWARD_GRACE_S

    def _watch(self) -> None:
        """Exchange requests with other ranks, and interrupt an overdue reward call in the main thread."""
        main = threading.main_thread().ident
        assert main is not None
        while not self._stopped.wait(WATCH_INTERVAL_S):
            if time.time() >= self.deadline:
                self.request_stop()
            if self.received_signal is not None:
                self._is_announced = self._is_announced or distributed.set_flag(PREEMPTION_FLAG)
            elif not self._is_requested_remotely and distributed.flag_is_set(PREEMPTION_FLAG):
                self._requested_at, self._is_requested_remotely = time.monotonic(), True
            if self.is_requested and not self._is_reported and self.on_preemption is not None:
                self._is_reported = True
                with suppress(OSError, SystemExit):  # the output may have no reader
                    self.on_preemption("another rank" if self.received_signal is None else self.received_signal.name)
            if self._is_reward_overdue():
                signal.pthread_kill(main, signal.SIGUSR1)
