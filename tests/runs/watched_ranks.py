"""One rank of test_watchdog.py, under a watchdog of `LIMIT_S`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ippo_cli.engine import distributed, progress
from ippo_cli.runs.watchdog import Watchdog

LIMIT_S = 1.0


def works(seconds: float) -> None:
    """Make progress all the time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        progress.heartbeat()
        time.sleep(0.02)


def hangs() -> None:
    while True:
        time.sleep(3600)


def wait_for(file: Path) -> None:
    while not file.exists():
        progress.heartbeat()
        time.sleep(0.02)


def main(folder: Path, scene: str, rank: int) -> None:
    if scene == "waits":
        works(3 * LIMIT_S) if rank else None
        distributed.barrier()
    elif scene == "within":
        with progress.grant_time(2 * LIMIT_S):
            time.sleep(1.7 * LIMIT_S)
    elif scene in ("stopped0", "stopped1"):
        if rank == int(scene[-1]):
            wait_for(folder / "watched")  # until then, the other rank may still be in the rendezvous with this one
            os.kill(os.getpid(), signal.SIGSTOP)
        (folder / "watched").touch()
        distributed.barrier()
    elif scene == "suspended":
        time.sleep(0.15 * LIMIT_S)  # at least one check
        (folder / "there").touch()
        time.sleep(0.2 * LIMIT_S)  # over when the job continues
        time.sleep(0.15 * LIMIT_S)  # a check before any progress
        works(LIMIT_S)
    else:
        child = subprocess.Popen(["sleep", "600"])
        (folder / f"child{rank}").write_text(str(child.pid))
        hangs()


if __name__ == "__main__":
    place, what = Path(sys.argv[1]), sys.argv[2]
    number = distributed.init(device="cpu", timeout_s=60).rank
    with Watchdog(place, limit_s=LIMIT_S, first_limit_s=LIMIT_S):
        main(place, what, number)
    distributed.barrier()
    distributed.shutdown()
    os._exit(0)
