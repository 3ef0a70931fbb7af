"""Starting ranks on this machine, passing signals on to them, and ending together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from ippo_cli.config.errors import IppoError

FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
PREEMPTED, INTERRUPTED = 75, 130
GRACE_S = 20.0  # how long other ranks may take to notice that one is gone


class RankFailure(IppoError):
    """A rank ended with an error; its exit code is the run's."""

    def __init__(self, rank: int, code: int) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        super().__init__(f"rank {rank} {how}; its own message stands above")
        self.exit_code = code if code > 0 else 1


def external_world_size() -> int | None:
    """How many ranks torchrun, the deepspeed launcher or srun started this process among; None if none of them did."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    if "SLURM_STEP_ID" in os.environ and int(os.environ.get("SLURM_NTASKS", "1")) > 1:
        return int(os.environ["SLURM_NTASKS"])
    return None


def run_ranks(folder: Path, processes: int, *, resumed: bool) -> None:
    """Train in `processes` child processes. Raises `RankFailure` with the exit code of the first rank that failed."""
    port = _free_port()
    children = [_start(folder, rank, processes, port, resumed=resumed) for rank in range(processes)]

    def forward(number: int, _: FrameType | None) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        failed = _wait(children)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for child in children:
            if child.poll() is None:
                child.kill()
    if failed is not None:
        raise RankFailure(failed, children[failed].returncode)


def _start(folder: Path, rank: int, processes: int, port: int, *, resumed: bool) -> subprocess.Popen[bytes]:
    threads = os.environ.get("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // processes, 1)))
    environment = os.environ | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": threads,
    }  # fmt: skip
    command = [sys.executable, "-m", "ippo_cli.cli.rank", str(folder), *(["--resumed"] if resumed else [])]
    # A process group of its own: Ctrl-C reaches the ranks once, through `forward`.
    return subprocess.Popen(command, env=environment, process_group=0)


def _wait(children: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all; after a failure the others get a grace period. The first rank that failed, or None."""
    first: int | None = None
    deadline = float("inf")
    while any(child.poll() is None for child in children):
        time.sleep(0.1)
        for rank, child in enumerate(children):
            code = child.poll()
            if code is None or code == 0 or first is not None:
                continue
            first = rank
            if code not in (PREEMPTED, INTERRUPTED):  # those saved together: the others need no deadline
                deadline = time.monotonic() + GRACE_S
        if time.monotonic() > deadline:
            for child in children:
                if child.poll() is None:
                    child.kill()
    failures = [rank for rank, child in enumerate(children) if child.returncode != 0]
    return first if first is not None else (failures[0] if failures else None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
