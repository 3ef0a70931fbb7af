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
from ippo_cli.sweeps.folder import LEAVING, Row, changed
from ippo_cli.sweeps.job import Sweep

GPUS = Path("/proc/driver/nvidia/gpus")
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(slots=True)
class _Place:
    """One of the jobs that train at a time: which, its process and its GPUs; None while nobody is there."""

    job: int | None = None
    process: subprocess.Popen[bytes] | None = None
    devices: tuple[str, ...] = ()  # empty as well where all are everybody's


class JobPool:
    """Starts jobs and notes their ends; each keeps its own row, except where its process dies."""

    def __init__(self, this: Sweep, at_once: int) -> None:
        self._this = this
        self._places = [_Place() for _ in range(at_once)]

    @property
    def has_room(self) -> bool:
        """Whether another job may begin: not once the sweep has been asked to leave."""
        return not self.leaves and any(place.process is None for place in self._places)

    @property
    def leaves(self) -> bool:
        """Whether the sweep has been asked to leave."""
        return (self._this.folder / LEAVING).exists()

    @property
    def jobs(self) -> list[int]:
        """Those that are running."""
        return [place.job for place in self._places if place.job is not None]

    def start(self, row: Row, plain: Mapping[str, Any]) -> None:
        """Train the job of a row, with the plain values of its configuration."""
        place = next(place for place in self._places if place.process is None)
        taken = Counter(name for other in self._places for name in other.devices)
        place.devices = dealt(known_devices(os.environ), int(plain["launch"]["processes"]), taken)
        environment = os.environ | ({VISIBLE: ",".join(place.devices)} if place.devices else {})
        place.job = row.job
        place.process = subprocess.Popen(
            [sys.executable, "-m", "ippo_cli.sweeps.worker"],
            stdin=subprocess.PIPE,
            env=environment,
            process_group=0,  # Ctrl-C reaches the job once, through the sweep
        )
        assert place.process.stdin is not None
        told = {"sweep": asdict(self._this) | {"folder": str(self._this.folder)}, "row": asdict(row), "plain": plain}
        with suppress(BrokenPipeError), place.process.stdin as pipe:
            pipe.write(json.dumps(told).encode())

    def reap(self) -> list[int]:
        """The jobs whose processes have ended since this was last asked."""
        ended = []
        for place in self._places:
            if place.process is None or place.job is None or place.process.poll() is None:
                continue
            with changed(self._this.folder, place.job) as row:
                if row.state == "running" or (row.state == "waiting" and place.process.returncode != 0):
                    words = f"its process ended without a word (code {place.process.returncode})"
                    sweep_folder.end(row, "failed", UNEXPECTED, words)
                    sweep_folder.note_run(row, self._this.folder / row.folder)
            ended.append(place.job)
            place.job, place.process, place.devices = None, None, ()
        return ended

    def prune(self, job: int, iteration: int) -> None:
        """Ask a job to save and leave, since its score after that iteration showed that it is hopeless."""
        with changed(self._this.folder, job) as row:
            row.pruned_at = iteration
        for place in self._places:
            if place.job == job and place.process is not None:
                with suppress(ProcessLookupError):
                    place.process.send_signal(signal.SIGTERM)


def known_devices(environ: Mapping[str, str]) -> list[str]:
    """The names of the GPUs that this process may use: numbers, or what CUDA_VISIBLE_DEVICES calls them."""
    if VISIBLE not in environ:
        return [str(number) for number in range(len(list(GPUS.iterdir())) if GPUS.is_dir() else 0)]
    names = [name.strip() for name in environ[VISIBLE].split(",")]
    return list(takewhile(lambda name: name and not name.startswith("-"), names))  # CUDA sees none behind such a name


def dealt(known: Sequence[str], ranks: int, taken: Mapping[str, int]) -> tuple[str, ...]:
    """The GPUs of one of several jobs that train at a time: as many as it has ranks, of those that fewest jobs have.

    None where there are no more than one job needs: all jobs share them.
    """
    if len(known) <= ranks:
        return ()
    fewest = sorted(range(len(known)), key=lambda place: (taken.get(known[place], 0), place))
    return tuple(known[place] for place in sorted(fewest[:ranks]))
