"""Jobs of a sweep side by side on this machine: a process each, at most so many at a time."""

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
    """One of the jobs that train at a time: which, its process and its GPUs; None while nobody is there."""

    job: int | None = None
    process: subprocess.Popen[bytes] | None = None
    devices: tuple[str, ...] = ()  # empty as well where all are everybody's


class JobPool:
    """Starts jobs and notes their ends; each keeps its own row, except where its process dies."""

    def __init__(self, context: SweepContext, at_once: int) -> None:
        self._context = context
        self._slots = [_Slot() for _ in range(at_once)]

    @property
    def has_room(self) -> bool:
        """Whether another job may begin: not once the sweep has been asked to leave."""
        return not self.is_stopping and any(place.process is None for place in self._slots)

    @property
    def is_stopping(self) -> bool:
        """Whether the sweep has been asked to leave."""
        return (self._context.folder / STOP_FILE).exists()

    @property
    def jobs(self) -> list[int]:
        """Those that are running."""
        return [place.job for place in self._slots if place.job is not None]

    def start(self, row: JobRow, plain: Mapping[str, Any]) -> None:
        """Train the job of a row, with the plain values of its configuration."""
        slot = next(place for place in self._slots if place.process is None)
        use_counts = Counter(name for other in self._slots for name in other.devices)
        slot.devices = assign_devices(known_devices(os.environ), int(plain["launch"]["processes"]), use_counts)
        environment = os.environ | ({VISIBLE_DEVICES: ",".join(slot.devices)} if slot.devices else {})
        slot.job = row.job
        slot.process = subprocess.Popen(
            [sys.executable, "-m", "ippo_cli.sweeps.worker"],
            stdin=subprocess.PIPE,
            env=environment,
            process_group=0,  # Ctrl-C reaches the job once, through the sweep
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
        """The jobs whose processes have ended since this was last asked."""
        ended = []
        for slot in self._slots:
            if slot.process is None or slot.job is None or slot.process.poll() is None:
                continue
            with update_row(self._context.folder, slot.job) as row:
                if row.state == "running" or (row.state == "waiting" and slot.process.returncode != 0):
                    words = f"its process ended without a word (code {slot.process.returncode})"
                    sweep_folder.set_state(row, "failed", UNEXPECTED, words)
                    sweep_folder.copy_run_result(row, self._context.folder / row.folder)
            ended.append(slot.job)
            slot.job, slot.process, slot.devices = None, None, ()
        return ended

    def prune(self, job: int, iteration: int) -> None:
        """Ask a job to save and leave, since its score after that iteration showed that it is hopeless."""
        with update_row(self._context.folder, job) as row:
            row.pruned_at = iteration
        for slot in self._slots:
            if slot.job == job and slot.process is not None:
                with suppress(ProcessLookupError):
                    slot.process.send_signal(signal.SIGTERM)


def known_devices(environ: Mapping[str, str]) -> list[str]:
    """The names of the GPUs that this process may use: numbers, or what CUDA_VISIBLE_DEVICES calls them."""
    if VISIBLE_DEVICES not in environ:
        return [str(number) for number in range(len(list(GPU_DIR.iterdir())) if GPU_DIR.is_dir() else 0)]
    names = [name.strip() for name in environ[VISIBLE_DEVICES].split(",")]
    return list(takewhile(lambda name: name and not name.startswith("-"), names))  # CUDA sees none behind such a name


def assign_devices(devices: Sequence[str], ranks: int, use_counts: Mapping[str, int]) -> tuple[str, ...]:
    """The GPUs of one of several jobs that train at a time: as many as it has ranks, of those that fewest jobs have.

    None where there are no more than one job needs: all jobs share them.
    """
    if len(devices) <= ranks:
        return ()
    fewest = sorted(range(len(devices)), key=lambda place: (use_counts.get(devices[place], 0), place))
    return tuple(devices[place] for place in sorted(fewest[:ranks]))
