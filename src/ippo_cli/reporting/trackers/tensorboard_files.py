"""Writes TensorBoard event files to a run's folder."""

from __future__ import annotations

import errno
import math
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ippo_cli.config.errors import is_disk_full
from ippo_cli.reporting.trackers.tracker import Row

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

MIN_FREE_BYTES = 1 << 20  # free bytes needed before a retry, because every attempt starts a new file


class TensorBoardTracker:
    """Writes one scalar per number of a row."""

    name = "tb/"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None
        self._has_failed = False

    def log(self, row: Row, iteration: int) -> None:
        if self._has_failed and shutil.disk_usage(self._folder).free <= MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            self._write_scalars(row, iteration)
        except Exception:
            self._has_failed, self._writer = True, None  # its thread has ended; the next row starts a new file
            raise
        self._has_failed = False

    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Does nothing: texts are in `samples/`."""

    def finish(self, state: str) -> None:
        if self._writer is not None:
            self._writer.close()

    def _write_scalars(self, row: Row, iteration: int) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            threading.excepthook = _ignore_disk_full
            # Purge later points of an earlier process: a resume abandons those iterations.
            self._writer = SummaryWriter(str(self._folder / "tb"), purge_step=iteration)
        for key, value in row.items():
            if key != "iteration":
                self._writer.add_scalar(key, math.nan if value is None else value, iteration)
        self._writer.flush()


def _ignore_disk_full(args: threading.ExceptHookArgs) -> None:
    """Hide tracebacks of the writer's thread on a full disk: the next row raises the same error."""
    if type(args.thread).__name__ != "_AsyncWriterThread" or args.exc_value is None or not is_disk_full(args.exc_value):
        threading.__excepthook__(args)
