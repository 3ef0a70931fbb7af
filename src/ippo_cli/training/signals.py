"""Being asked to leave: signals set a flag, and ranks agree on it at fixed points of the loop."""

from __future__ import annotations

import signal
from types import FrameType

from ippo_cli.engine import distributed

ASKED_BY = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


class Leaving(Exception):
    """Raised inside a rollout to abandon it; the rollout is repeated after resuming."""


class Departure:
    """Whether some rank was asked to leave. A second Ctrl-C leaves at once."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._before = {}

    def __enter__(self) -> Departure:
        for number in ASKED_BY:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def poll(self) -> None:
        """Raise `Leaving` on a rank that was asked: for use between decode steps."""
        if self.asked is not None:
            raise Leaving

    def agreed(self) -> bool:
        """Whether any rank was asked, known to all ranks: for use where all of them pass."""
        return distributed.any_rank(self.asked is not None)

    @property
    def interrupted(self) -> bool:
        return self.asked is signal.SIGINT

    def _note(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and self.interrupted:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number)
