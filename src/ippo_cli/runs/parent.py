"""The process that started a rank: SIGTERM is requested for its death."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from ippo_cli.engine.launchers import STARTED_BY

PR_SET_PDEATHSIG = 1


def launcher_pid() -> int:
    """The process that started this rank."""
    return int(os.environ[STARTED_BY])


def terminate_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when the parent is gone: then a rank saves and leaves."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was gone before: nobody would be told
            os.kill(os.getpid(), signal.SIGTERM)
