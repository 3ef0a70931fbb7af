"""Jobs that train side by side: those of a list, or those that a search makes up from how earlier ones ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ippo_cli.config.errors import IppoError
from ippo_cli.sweeps import folder as sweep_folder
from ippo_cli.sweeps.folder import JobRow, read_rows, update_row
from ippo_cli.sweeps.job import SweepContext
from ippo_cli.sweeps.pool import JobPool
from ippo_cli.sweeps.summary import read_curve, read_metric_name

POLL_S = 0.3
FINISHED = ("done", "pruned", "failed", "refused")  # for good, as far as this attempt at the sweep goes
ComposeJob = Callable[[JobRow], dict[str, Any]]
"""The plain values of a job's configuration, checked; gives its row the folder. Raises an `IppoError`."""


class Search(Protocol):
    """What makes up jobs. It has no memory: all that it knows of the jobs so far are their rows and folders."""

    @property
    def total(self) -> int:
        """Jobs that it may make up."""
        ...

    def due(self, folder: Path, rows: Sequence[JobRow]) -> list[JobRow]:
        """Jobs that can be made up now, and are not there yet."""
        ...

    def unfinished(self, rows: Sequence[JobRow]) -> list[JobRow]:
        """Jobs that an earlier attempt at the sweep left, and that are still worth running."""
        ...

    def prepare(self, folder: Path, row: JobRow, rows: Sequence[JobRow]) -> None:
        """What is to be there before a job begins."""
        ...

    def prune_iteration(self, folder: Path, row: JobRow, rows: Sequence[JobRow]) -> int | None:
        """The iteration by which a job has shown that it is; None as long as it has not."""
        ...


class FixedJobs:
    """Jobs that are all known beforehand."""

    total = 0  # more of them than there are rows

    def due(self, folder: Path, rows: Sequence[JobRow]) -> list[JobRow]:
        return []

    def unfinished(self, rows: Sequence[JobRow]) -> list[JobRow]:
        return [row for row in rows if row.state != "done"]

    def prepare(self, folder: Path, row: JobRow, rows: Sequence[JobRow]) -> None:
        pass

    def prune_iteration(self, folder: Path, row: JobRow, rows: Sequence[JobRow]) -> int | None:
        return None


def run_search(
    search: Search, context: SweepContext, at_once: int, make: ComposeJob, plains: dict[int, dict[str, Any]]
) -> None:
    """Run the jobs that wait, and those that become due, until there are no more or the sweep is asked to leave.

    `plains` are the values of jobs that are made already.
    """
    pool = JobPool(context, at_once)
    started: set[int] = set()
    judged: dict[int, int] = {}  # bytes of its metrics, by job
    while True:
        rows = read_rows(context.folder)
        if not pool.is_stopping:
            new = search.due(context.folder, rows)
            _compose_jobs(new, make, plains)
            if new:
                sweep_folder.add_rows(context.folder, new)
                continue  # what was refused may make others due
        waiting = [row for row in rows if row.state == "waiting" and row.job in plains and row.job not in started]
        while waiting and pool.has_room:
            row = waiting.pop(0)
            search.prepare(context.folder, row, rows)
            started.add(row.job)
            pool.start(row, plains[row.job])
        ended = pool.reap()
        if ended:
            _prune_ended_jobs(search, context.folder, ended)
            continue
        if not pool.jobs and (pool.is_stopping or not waiting):
            return
        _prune_jobs(search, context.folder, rows, pool, judged)
        time.sleep(POLL_S)


def _prune_jobs(search: Search, folder: Path, rows: Sequence[JobRow], pool: JobPool, judged: dict[int, int]) -> None:
    """Ask the jobs to leave that have fallen behind; each is judged when it has logged more than before."""
    for row in rows:
        if (
            row.job not in pool.jobs
            or row.pruned_at is not None
            or judged.get(row.job) == (size := _metrics_size(folder, row))
        ):
            continue
        judged[row.job] = size
        at = search.prune_iteration(folder, row, rows)
        if at is not None:
            print(f"job {row.job} is ended: its score after iteration {at} is below the median", flush=True)
            pool.prune(row.job, at)


def _metrics_size(folder: Path, row: JobRow) -> int:
    """How much a job has logged, in bytes."""
    try:
        return (folder / row.folder / "metrics.jsonl").stat().st_size
    except OSError:
        return 0


def _prune_ended_jobs(search: Search, folder: Path, ended: Sequence[int]) -> None:
    """A job that ended before it could be asked to is judged as any other: how fast it was decides nothing."""
    rows = read_rows(folder)
    for row in rows:
        if row.job in ended and row.state == "done":
            at = row.pruned_at if row.pruned_at is not None else search.prune_iteration(folder, row, rows)
            if at is not None:
                with update_row(folder, row.job) as saved_row:
                    saved_row.state, saved_row.pruned_at = "pruned", at


def resume_rows(folder: Path, search: Search, make: ComposeJob) -> tuple[list[JobRow], dict[int, dict[str, Any]]]:
    """The rows of a sweep that goes on, those that are unfinished made anew."""
    rows = read_rows(folder)
    for row in rows:
        if row.state != "pruned" and row.pruned_at is None and sweep_folder.is_done(folder / row.folder):
            sweep_folder.set_state(row, "done", 0, None)
            sweep_folder.copy_run_result(row, folder / row.folder)
        elif row.pruned_at is not None:
            sweep_folder.set_state(row, "pruned", 0, None)
    unfinished = [row for row in search.unfinished(rows) if row.state not in sweep_folder.FINISHED_STATES]
    for row in unfinished:
        sweep_folder.set_state(row, "waiting", None, None)
    plains: dict[int, dict[str, Any]] = {}
    _compose_jobs(unfinished, make, plains)
    return rows, plains


def _compose_jobs(rows: Sequence[JobRow], make: ComposeJob, plains: dict[int, dict[str, Any]]) -> None:
    """Make the jobs of rows; what cannot run is refused, and others go on."""
    for row in rows:
        try:
            plains[row.job] = make(row)
        except IppoError as error:
            sweep_folder.set_state(row, "refused", error.exit_code, str(error))
            print(f"job {row.job} is refused: {' '.join(str(error).split())}", flush=True)


def score_curve(folder: Path, row: JobRow) -> list[tuple[int, float]]:
    """Iterations and held-out scores by which a job is judged, as far as they are there."""
    metric = read_metric_name(folder / row.folder)
    return [] if metric is None else read_curve(folder / row.folder, metric, row.pruned_at)


def final_score(folder: Path, row: JobRow) -> float | None:
    """The last held-out score of a job that is done or was pruned; None of any other."""
    curve = score_curve(folder, row) if row.state in sweep_folder.FINISHED_STATES else []
    return curve[-1][1] if curve else None
