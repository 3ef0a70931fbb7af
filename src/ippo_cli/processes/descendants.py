"""The processes that a process has started: end all of them, those in sessions of their own included.

Linux alone gives the children of a process that has ended to an ancestor; elsewhere only direct children are found.
Uses the standard library alone, for small processes that start others.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
POLL_S = 0.005
LIMIT_S = 5.0


def adopt_orphans() -> None:
    """Make this process the parent of the descendants whose own parent ends."""
    _control_process(PR_SET_CHILD_SUBREAPER, 1)


def request_signal_at_end_of_parent(number: int) -> None:
    """Ask the kernel for a signal to this process when its parent has ended."""
    _control_process(PR_SET_PDEATHSIG, number)


def list_children() -> list[int]:
    """The children of this process; empty without `/proc`."""
    own = str(os.getpid())
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        try:
            with open(f"/proc/{entry}/stat") as file:
                parent = file.read().rpartition(")")[2].split()[1]  # the name before it may contain anything
        except OSError:
            continue
        if parent == own:
            found.append(int(entry))
    return found


def kill_descendants() -> None:
    """Kill the children of this process, then the children that these leave to it, until none is left."""
    end = time.monotonic() + LIMIT_S  # a process in the kernel may not end
    while time.monotonic() < end:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for child in list_children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        time.sleep(POLL_S)


def _control_process(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
