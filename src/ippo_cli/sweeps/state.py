"""The current state of the jobs of a sweep, from their files, their processes and the queue of SLURM."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import IppoError
from ippo_cli.engine import launchers
from ippo_cli.runs.folder import RUN_LOCK, is_run_locked
from ippo_cli.sweeps.folder import JobRow

STATES = ("done", "pruned", "running", "waiting", "preempted", "missing", "failed", "refused")
SLURM_OUTPUT = ".submitit/*/*_log.err"  # JOB_TASK_log.err; JOB is ARRAY_INDEX in a job array
END_NOTICE = re.compile(r"\*\*\* (?:JOB|STEP) \S+ ON \S+ [A-Z ]+ AT (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
NOTICE_BYTES = 65_536  # length of the end of the output that is searched for SLURM's notice of termination
OVERDUE_S = 600.0  # seconds after the time limit when a job has ended, even with the grace time of a cluster


@dataclass(frozen=True, slots=True)
class SlurmQueue:
    """The states of the SLURM jobs of a sweep."""

    states: Mapping[str, str] | None  # running and pending jobs; None if squeue is not available
    ended_at: Mapping[str, float]  # time of SLURM's notice of termination in the output of a job

    def state_for_row(self, row: JobRow) -> str:
        """The state of a job that its row records as running or as requeued."""
        assert row.slurm is not None
        if self.states is None:
            since = row.since or 0.0
            ended = self.ended_at.get(row.slurm, -1.0) >= int(since)  # notices have a resolution of one second
            overdue = row.until is not None and time.time() > row.until + OVERDUE_S
            return "missing" if ended or overdue else row.state
        if row.slurm not in self.states:
            return "missing"
        return "waiting" if self.states[row.slurm] == "PENDING" else row.state


def read_queue(sweep: Path, rows: Sequence[JobRow]) -> SlurmQueue:
    """The SLURM jobs of these rows, from `squeue`, or from SLURM's notices in the outputs if that is not available."""
    states = launchers.queue_states([row.slurm for row in rows if row.slurm is not None])
    return SlurmQueue(states, _read_end_notices(sweep) if states is None else {})


def _read_end_notices(sweep: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for file in sweep.glob(SLURM_OUTPUT):
        with suppress(OSError), file.open("rb") as output:
            output.seek(max(0, file.stat().st_size - NOTICE_BYTES))
            job = file.name.rsplit("_", 2)[0]
            for at in END_NOTICE.findall(output.read().decode(errors="replace")):
                found[job] = max(found.get(job, 0.0), datetime.fromisoformat(at).timestamp())
    return found


def job_state(row: JobRow, run: Mapping[str, Any], queue: SlurmQueue, *, going_on: bool) -> str:
    """The current state of a job; the state of its run takes precedence over its row."""
    if row.pruned_at is not None:
        return "pruned"
    if run.get("state") == "done":
        return "done"
    if row.state == "running" and row.slurm is not None:
        return queue.state_for_row(row)
    if row.state == "running":
        return "running" if going_on or _is_alive(row) else "missing"
    if row.state == "waiting" and row.slurm is not None and queue.states is not None:
        return queue.state_for_row(row)
    if row.state == "waiting":
        return "waiting" if going_on else "missing"
    return row.state if row.state in STATES else "missing"


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of the folder; False if the lock cannot be read."""
    try:
        return (folder / RUN_LOCK).is_file() and is_run_locked(folder)
    except IppoError:  # a read-only folder
        return False


def _is_alive(row: JobRow) -> bool:
    """Whether the process of a row may still exist; True for a process of another host."""
    if row.pid is None or row.host != socket.gethostname():
        return row.host is not None and row.host != socket.gethostname()
    try:
        os.kill(row.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
