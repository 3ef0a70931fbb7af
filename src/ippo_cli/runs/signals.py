"""Being asked to leave: signals set a flag, and ranks agree on it where all of them pass.

A scheduler may ask one rank alone. It leaves a word for the others, who hear it within a second, wherever they are: in
the middle of long responses each of them can stop by itself, and all meet at the end of what is then abandoned.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import FrameType
from typing import ParamSpec, TypeVar

from ippo_cli.config.errors import PreemptionRequested
from ippo_cli.engine import distributed, progress
from ippo_cli.runs.handlers import InterruptCounter, handle_signals

P = ParamSpec("P")
T = TypeVar("T")

HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
TIME_LIMIT_SIGNAL = signal.SIGALRM  # stands for a clock's word: nobody sends it
REWARD_GRACE_S = 10.0
"""How long after the signal a reward that is being called is still waited for."""
WATCH_INTERVAL_S = 0.5
PREEMPTION_FLAG = "asked to leave"


class PreemptionHandler:
    """Whether some rank was asked to leave. A second Ctrl-C leaves at once.

    Signals are handled until `over` closes, which may be after this handler's own end: what comes while a run that has
    ended puts away what it used does not change how it ended.
    """

    def __init__(self, scope: ExitStack | None = None) -> None:
        self.received_signal: signal.Signals | None = None  # what this rank was asked by
        self.on_preemption: Callable[[str], None] | None = None  # is told once, in a thread of its own, by whom
        self._is_requested_remotely = False  # whether another rank was, as far as this one has heard
        self._is_announced = False
        self._told = False
        self._interrupts = InterruptCounter()
        self._requested_at = 0.0
        self._is_calling_reward = False
        self.deadline = math.inf  # the moment, in seconds since 1970, at which this rank asks itself
        self._held = ExitStack()  # until this handler's end, where nothing lasts longer
        self._handler_scope = scope or self._held
        self._over = threading.Event()
        self._watch_thread = threading.Thread(target=self._watch, name="preemption", daemon=True)

    def __enter__(self) -> PreemptionHandler:
        self._handler_scope.enter_context(handle_signals(HANDLED_SIGNALS, self._handle_signal))
        self._watch_thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._held.close()
        self._watch_thread.join(timeout=2 * WATCH_INTERVAL_S)  # the process group is not to end under it

    @property
    def asked(self) -> bool:
        """Whether this rank knows that some rank was asked; others may not know it yet."""
        return self.received_signal is not None or self._is_requested_remotely

    def poll(self) -> None:
        """Raise `PreemptionRequested` on a rank that knows of it: for use between decode steps, inside of what all
        ranks leave together (`distributed.failing_together`)."""
        if self.asked:
            raise PreemptionRequested

    def raise_if_any_rank_requested(self) -> None:
        """Raise `PreemptionRequested` on all ranks where one of them was asked. Collective: all of them pass here."""
        if distributed.any_rank(self.asked):
            raise PreemptionRequested

    def leave(self) -> None:
        """Ask this rank to leave: its time is over."""
        self._ask(TIME_LIMIT_SIGNAL)

    @property
    def is_out_of_time(self) -> bool:
        """Whether this rank was asked because its time is over."""
        return self.received_signal is TIME_LIMIT_SIGNAL

    @property
    def is_interrupted(self) -> bool:
        return self.received_signal is signal.SIGINT

    @property
    def insisted(self) -> bool:
        """Whether Ctrl-C came again, after the first one was announced."""
        return self._interrupts.insisted

    def make_interruptible(self, reward: Callable[P, T]) -> Callable[P, T]:
        """The same call of a reward, to be made in the main thread: what has not returned `REWARD_GRACE_S` after the
        signal raises `PreemptionRequested`.

        A reward whose own worker processes died of the same signal would be waited for without end.
        """

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
            self._interrupts.note()
        if self.insisted:
            raise KeyboardInterrupt
        if self._is_reward_overdue():
            raise PreemptionRequested
        self._ask(signal.Signals(number))

    def _ask(self, by: signal.Signals) -> None:
        if self.received_signal is None:
            self._requested_at = self._requested_at if self._is_requested_remotely else time.monotonic()
            self.received_signal = by

    def _is_reward_overdue(self) -> bool:
        return self.asked and self._is_calling_reward and time.monotonic() - self._requested_at >= REWARD_GRACE_S

    def _watch(self) -> None:
        """Tell other ranks and hear from them; and wake the main thread, the one that runs handlers, while a reward
        keeps it beyond its time."""
        main = threading.main_thread().ident
        assert main is not None
        while not self._over.wait(WATCH_INTERVAL_S):
            if time.time() >= self.deadline:
                self.leave()
            if self.received_signal is not None:
                self._is_announced = self._is_announced or distributed.set_flag(PREEMPTION_FLAG)
            elif not self._is_requested_remotely and distributed.flag_is_set(PREEMPTION_FLAG):
                self._requested_at, self._is_requested_remotely = time.monotonic(), True
            if self.asked and not self._told and self.on_preemption is not None:
                self._told = True
                with suppress(OSError, SystemExit):  # nobody may read any more what is printed
                    self.on_preemption("another rank" if self.received_signal is None else self.received_signal.name)
            if self._is_reward_overdue():
                signal.pthread_kill(main, signal.SIGUSR1)
