"""Run a server as a child, and end it with everything that it started when the trainer ends, however that happens.

    python -I supervise.py TRAINER_PID FOLDERS COMMAND...

vLLM's engine is a grandchild of the trainer: no signal of the kernel reaches it if the trainer is killed, and it would
keep its memory for ever. Uses the standard library alone, since it is run as a script and stays in memory.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
POLL_S = 0.2
GRACE_S = 3.0
"""Between SIGTERM and SIGKILL."""


def main(arguments: Sequence[str]) -> int:
    """Return the server's exit code, 128 + n for a signal n. `FOLDERS`, separated by colons, are removed at the end."""
    trainer, folders, command = int(arguments[0]), arguments[1], list(arguments[2:])
    stop: list[int] = []

    def request_stop(number: int, frame: FrameType | None) -> None:
        stop.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, request_stop)
    _control_process(PR_SET_CHILD_SUBREAPER, 1)
    try:
        # Safe here, unlike in the trainer: this process has one thread.
        server = subprocess.Popen(command, preexec_fn=lambda: _control_process(PR_SET_PDEATHSIG, signal.SIGTERM))
        while server.poll() is None and os.getppid() == trainer and not stop:
            time.sleep(POLL_S)
        if server.poll() is None:
            server.terminate()
            server.send_signal(signal.SIGCONT)
            end = time.monotonic() + GRACE_S
            while server.poll() is None and time.monotonic() < end:
                time.sleep(POLL_S / 4)
        return _kill_descendants(server)
    finally:
        for folder in filter(None, folders.split(":")):
            shutil.rmtree(folder, ignore_errors=True)


def _kill_descendants(server: subprocess.Popen[bytes]) -> int:
    """Kill children until none is left; a subreaper inherits the children of those that it kills.

    Python's resource trackers end by themselves once the others have, and remove shared memory that those left.
    """
    code, end_of_trackers = server.returncode, time.monotonic() + GRACE_S
    while True:
        for child in _children():
            waits = time.monotonic() < end_of_trackers and _is_resource_tracker(child)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT if waits else signal.SIGKILL)
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 128 - code if code < 0 else code
        if process == server.pid:
            code = server.returncode = os.waitstatus_to_exitcode(status)
        if process == 0:
            time.sleep(POLL_S / 10)


def _is_resource_tracker(process: int) -> bool:
    try:
        with open(f"/proc/{process}/cmdline") as file:
            return "resource_tracker" in file.read()
    except OSError:
        return False


def _children() -> list[int]:
    own = str(os.getpid())
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                parent = file.read().rpartition(")")[2].split()[1]  # the name before it may contain anything
        except OSError:
            continue
        if parent == own:
            found.append(int(entry))
    return found


def _control_process(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
