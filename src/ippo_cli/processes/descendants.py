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
from collections.abc import Sequence
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
AWAITED = {signal.SIGCHLD, signal.SIGTERM}
POLL_S, SIGNAL_POLL_S = 0.005, 1.0
LIMIT_S = 5.0


def adopt_orphans() -> None:
    """Make this process the parent of descendants that lose their own."""
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


def fork_guarded(parent: int, close: Sequence[int]) -> None:
    """Continue in a child of this process, which ends all descendants of the child with it.

    This process exits as the child does. After SIGTERM, or the end of `parent`, it kills the child. `close`: file
    descriptors of the child alone.
    """
    mask = block_signals()
    adopt_orphans()
    child = os.fork()
    if child == 0:
        request_signal_at_end_of_parent(signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.setsid()
        return
    for number in close:
        os.close(number)
    code = wait_for_child(child, parent)
    kill_group(child)
    kill_descendants()
    if code is not None and code < 0:
        with suppress(OSError):  # SIGKILL has no other handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code or 0)


def block_signals() -> set[int]:
    """Keep the signals of `wait_for_child` for it; returns the earlier mask."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)


def wait_for_child(child: int, parent: int) -> int | None:
    """The exit code of a child, -n for a signal n; None after SIGTERM or the end of `parent`. Reaps orphans."""
    while True:
        if _wait_for_signal() == signal.SIGTERM or os.getppid() != parent:
            return None
        ended, status = os.waitpid(-1, os.WNOHANG)
        while ended:
            if ended == child:
                return os.waitstatus_to_exitcode(status)
            ended, status = os.waitpid(-1, os.WNOHANG)


def _wait_for_signal() -> int | None:
    """The next of the awaited signals, which are blocked; None if none comes for a while."""
    if hasattr(signal, "sigtimedwait"):
        received = signal.sigtimedwait(AWAITED, SIGNAL_POLL_S)
        return None if received is None else received.si_signo
    time.sleep(POLL_S)  # macOS has no wait with a limit
    return signal.SIGTERM if signal.SIGTERM in signal.sigpending() else None


def kill_group(process: int) -> None:
    """Kill a process and its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):  # it may not lead a group yet
        os.kill(process, signal.SIGKILL)


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
