"""Closed standard output, as in `... | head -3`: commands exit quietly, and training continues."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from contextlib import suppress
from typing import Any

from ippo_cli.config.errors import Interruption
from ippo_cli.config.escape import escape_lines, escape_text

CLOSED_ERRNOS = (errno.EPIPE, errno.EIO, errno.ECONNRESET)  # a pipe's reader, a terminal, a socket's other end
_continuing_task = ""  # the task that continues without a reader, if any


class OutputClosed(Interruption):
    """The output has no reader and the command exits. Not an `Exception`, so that no handler treats it as a failure."""


class _OutputStream(io.FileIO):
    """A file descriptor of the process that discards output once the reader is gone."""

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
    """Open the null device for closed standard streams (`>&-`), so that no file reuses their descriptors."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def detect_closed_output() -> None:
    """From now on, writes to standard output or error raise `OutputClosed` once the reader is gone."""
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
    """From now on, continue `task` if standard output or error loses its reader."""
    global _continuing_task
    detect_closed_output()
    _continuing_task = task


def print_text(text: str, *, end: str = "\n", to_stderr: bool = False, flush: bool = True) -> None:
    """Print text of this program, which may quote names, values and errors of others.

    All text of the package goes through this function: control characters are escaped, except newlines and tabs, so
    that quoted text cannot change the terminal. The caller escapes newlines of text that it quotes within a line.
    """
    print(escape_lines(text), end=end, file=sys.stderr if to_stderr else None, flush=flush)


def print_data(text: str) -> None:
    """Print text that programs read, such as YAML: unchanged into a file or pipe, escaped on a terminal."""
    print(escape_lines(text) if sys.stdout.isatty() else text, end="")


def print_status(text: str, *, terminal_only: bool = False) -> None:
    """Print a status line to stderr while a command loads, on rank 0 only."""
    is_first = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
    if is_first and (sys.stderr.isatty() or not terminal_only):
        print_text(escape_text(text), to_stderr=True)


def flush_output() -> None:
    """Flush the standard streams. Raises `OutputClosed`."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the disk may be full, or the stream closed
            stream.flush()


def _can_lose_reader(stream: io.TextIOWrapper) -> bool:
    try:
        raw = getattr(stream.buffer, "raw", stream.buffer)
        kind = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError, AttributeError):  # not a file of the system, e.g. in a test
        return False
    is_stream = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or stat.S_ISCHR(kind)
    return is_stream and stream.fileno() in (1, 2) and isinstance(raw, io.FileIO) and not isinstance(raw, _OutputStream)


def _redirect_to_devnull(descriptor: int) -> None:
    """Discard all later writes of this process to a descriptor."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    if _continuing_task and descriptor == 1:
        with suppress(OSError):
            os.write(2, f"ippo: the output has no reader any more; {_continuing_task} continues\n".encode())
