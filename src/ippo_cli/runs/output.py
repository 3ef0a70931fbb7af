"""Standard output whose reader goes away, as in `... | head -3`: commands end quietly, and training goes on."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from contextlib import suppress
from typing import Any

CLOSED_ERRNOS = (errno.EPIPE, errno.EIO, errno.ECONNRESET)  # a pipe's reader, a terminal, a socket's other end
_continuing_task = ""  # what goes on without a reader


class OutputClosed(BaseException):
    """The output is not read any more: the command ends. No failure, and so nothing that code may catch."""


class _OutputStream(io.FileIO):
    """A file descriptor of the process; what nobody can read any more is discarded."""

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in CLOSED_ERRNOS:
                raise
            _redirect_to_devnull(self.fileno())
            if not _continuing_task:
                raise OutputClosed from None
            return memoryview(data).nbytes


def open_closed_streams() -> None:
    """Give standard streams that were closed (`>&-`) the null device, before a file gets one of their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def detect_closed_output() -> None:
    """Raise `OutputClosed` where standard output or error, of this process, has lost its reader."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and _can_lose_reader(stream):
            stream.flush()
            raw = _OutputStream(stream.fileno(), "w", closefd=False)
            again = io.TextIOWrapper(
                raw if isinstance(stream.buffer, io.FileIO) else io.BufferedWriter(raw),  # PYTHONUNBUFFERED
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering or name == "stderr",
                write_through=stream.write_through,
            )
            setattr(sys, name, again)


def ignore_closed_output(task: str = "training") -> None:
    """From now on go on without them: what this process does is worth more than its output."""
    global _continuing_task
    detect_closed_output()
    _continuing_task = task


def print_status(text: str, *, terminal_only: bool = False) -> None:
    """Say on stderr what a command does before its first output: loading takes seconds. Of several ranks the first."""
    is_first = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
    if is_first and (sys.stderr.isatty() or not terminal_only):
        print(text, file=sys.stderr, flush=True)


def flush_output() -> None:
    """Write what is buffered. Raises `OutputClosed`."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its disk may be full, or it may be closed
            stream.flush()


def _can_lose_reader(stream: io.TextIOWrapper) -> bool:
    try:
        raw = getattr(stream.buffer, "raw", stream.buffer)
        kind = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError, AttributeError):  # no file of the system, such as a test's
        return False
    is_stream = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or stat.S_ISCHR(kind)
    return is_stream and stream.fileno() in (1, 2) and isinstance(raw, io.FileIO) and not isinstance(raw, _OutputStream)


def _redirect_to_devnull(descriptor: int) -> None:
    """Let what is written to a descriptor go nowhere, whoever in this process writes."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    if _continuing_task and descriptor == 1:
        with suppress(OSError):
            os.write(2, f"ippo: the reader of the output is gone; {_continuing_task} continues\n".encode())
