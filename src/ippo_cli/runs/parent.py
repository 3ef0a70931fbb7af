"""Parent process of a rank: the rank receives SIGTERM when the parent dies."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from ippo_cli.engine.launchers import STARTED_BY

PR_SET_PDEATHSIG = 1


def launcher_pid() -> int:
    """The process id of the launcher that started this rank."""
    return int(os.environ[STARTED_BY])


def terminate_with_parent(parent: int) -> None:
    """Ask the kernel to send SIGTERM when the parent dies, so that the rank saves and exits. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the request, so the kernel sends nothing
            os.kill(os.getpid(), signal.SIGTERM)
