"""Forwards termination signals of a sweep to its jobs."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from ippo_cli.engine import launchers
from ippo_cli.runs.handlers import InterruptCounter, drop_ignored_sighup
from ippo_cli.runs.launch import FORWARDED
from ippo_cli.sweeps.folder import STOP_FILE, read_rows


class SignalForwarding:
    """Forwards termination signals to jobs in processes of a launcher, and prevents new jobs from starting.

    SLURM jobs receive SIGTERM, because they requeue themselves after other signals. A job in this process replaces
    these handlers while its ranks run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._interrupts = InterruptCounter()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SignalForwarding:
        for number in drop_ignored_sighup(FORWARDED):
            self._before[number] = signal.signal(number, self._forward)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _forward(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._interrupts.record()
        (self._folder / STOP_FILE).write_text(str(number))
        for row in read_rows(self._folder):
            if row.state != "running":
                continue
            if row.slurm is not None:
                launchers.terminate_job(row.slurm)
            elif row.host == socket.gethostname() and row.pid not in (None, os.getpid()):
                with suppress(ProcessLookupError, PermissionError):
                    if number != signal.SIGINT or os.getpgid(row.pid) == row.pid:  # else the terminal sent it
                        os.kill(row.pid, number)
        if self._interrupts.is_repeated:
            raise KeyboardInterrupt
