"""Runs jobs of a sweep in parallel on this machine: one process per job, at most `sweep.max_parallel` at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import UNEXPECTED
from ippo_cli.sweeps import folder as sweep_folder
from ippo_cli.sweeps.folder import STOP_FILE, JobRow, update_row
from ippo_cli.sweeps.job import SweepContext

GPU_DIR = Path("/proc/driver/nvidia/gpus")
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(slots=True)
class _Slot:
    """One place for a running job: its number, process and GPUs; None while the slot is free."""

    job: int | None = None
    process: subprocess.Popen[bytes] | None = None
    devices: tuple[str, ...] = ()  # also empty if all jobs share all GPUs


class JobPool:
    """Starts job processes and collects finished ones; updates the row of a job only if its process died."""

    def __init__(self, context: SweepContext, max_parallel: int) -> None:
        self._context = context
        self._slots = [_Slot() for _ in range(max_parallel)]

    @property
    def has_room(self) -> bool:
        """Whether another job may start: a slot is free and the sweep is not stopping."""
        return not self.is_stopping and any(place.process is None for place in self._slots)

    @property
    def is_stopping(self) -> bool:
        """Whether a signal has stopped the sweep."""
        return (self._context.folder / STOP_FILE).exists()

    @property
    def running_jobs(self) -> list[int]:
        """The numbers of the running jobs."""
        return [place.job for place in self._slots if place.job is not None]

    def start(self, row: JobRow, plain: Mapping[str, Any]) -> None:
        """Start the process that trains the job of a row. `plain`: its configuration as plain values."""
        slot = next(place for place in self._slots if place.process is None)
        use_counts = Counter(name for other in self._slots for name in other.devices)
        slot.devices = assign_devices(known_devices(os.environ), int(plain["launch"]["processes"]), use_counts)
        environment = os.environ | ({VISIBLE_DEVICES: ",".join(slot.devices)} if slot.devices else {})
        slot.job = row.job
        slot.process = subprocess.Popen(
            [sys.executable, "-m", "ippo_cli.sweeps.worker"],
            stdin=subprocess.PIPE,
            env=environment,
            process_group=0,  # so that Ctrl-C reaches the job only once, through the sweep
        )
        assert slot.process.stdin is not None
        message = {
            "sweep": asdict(self._context) | {"folder": str(self._context.folder)},
            "row": asdict(row),
            "plain": plain,
        }
        with suppress(BrokenPipeError), slot.process.stdin as pipe:
            pipe.write(json.dumps(message).encode())

    def reap(self) -> list[int]:
        """Free the slots of ended processes and return the numbers of their jobs."""
        ended = []
        for slot in self._slots:
            if slot.process is None or slot.job is None or slot.process.poll() is None:
                continue
            with update_row(self._context.folder, slot.job) as row:
                if row.state == "running" or (row.state == "waiting" and slot.process.returncode != 0):
                    words = f"its process ended without a message (code {slot.process.returncode})"
                    sweep_folder.set_state(row, "failed", UNEXPECTED, words)
                    sweep_folder.copy_run_result(row, self._context.folder / row.folder)
            ended.append(slot.job)
            slot.job, slot.process, slot.devices = None, None, ()
        return ended

    def prune(self, job: int, iteration: int) -> None:
        """Send SIGTERM to a job, so that it saves and exits; record the iteration of the score that caused it."""
        with update_row(self._context.folder, job) as row:
            row.pruned_at = iteration
        for slot in self._slots:
            if slot.job == job and slot.process is not None:
                with suppress(ProcessLookupError):
                    slot.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Send SIGTERM to all jobs, which save and exit, and wait for their ends."""
        for slot in self._slots:
            if slot.process is not None:
                with suppress(ProcessLookupError):
                    slot.process.send_signal(signal.SIGTERM)
        for slot in self._slots:
            if slot.process is not None:
                slot.process.wait()


def known_devices(environ: Mapping[str, str]) -> list[str]:
    """The names of the visible GPUs: the entries of CUDA_VISIBLE_DEVICES, or the numbers of all GPUs."""
    if VISIBLE_DEVICES not in environ:
        return [str(number) for number in range(len(list(GPU_DIR.iterdir())) if GPU_DIR.is_dir() else 0)]
    names = [name.strip() for name in environ[VISIBLE_DEVICES].split(",")]
    return list(
        takewhile(lambda name: name and not name.startswith("-"), names)
    )  # CUDA ignores all entries after an invalid one


def assign_devices(devices: Sequence[str], ranks: int, use_counts: Mapping[str, int]) -> tuple[str, ...]:
    """The GPUs of one of several parallel jobs: one per rank, preferring those that the fewest jobs use.

    Empty if there are no more GPUs than one job needs: all jobs then share all GPUs.
    """
    if len(devices) <= ranks:
        return ()
    fewest = sorted(range(len(devices)), key=lambda place: (use_counts.get(devices[place], 0), place))
    return tuple(devices[place] for place in sorted(fewest[:ranks]))
