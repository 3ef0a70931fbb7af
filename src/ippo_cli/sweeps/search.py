"""Runs jobs in parallel: those of a fixed list, or those that a search generates from the scores of earlier jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ippo_cli.config.errors import IppoError
from ippo_cli.runs.output import print_text
from ippo_cli.sweeps import folder as sweep_folder
from ippo_cli.sweeps.folder import JobRow, read_rows, update_row
from ippo_cli.sweeps.job import SweepContext
from ippo_cli.sweeps.pool import JobPool
from ippo_cli.sweeps.summary import read_curve, read_metric_name

POLL_S = 0.3
FINISHED = ("done", "pruned", "failed", "refused")  # final states within one attempt at the sweep
ComposeJob = Callable[[JobRow], dict[str, Any]]
"""Composes and checks a job: sets the folder of its row, returns plain values. Raises `IppoError`."""


class Search(Protocol):
    """Generates jobs. It is stateless: results depend only on the rows and folders of the jobs so far."""

    @property
    def total(self) -> int:
        """The largest number of jobs that it generates."""
        ...

    def new_rows(self, folder: Path, rows: Sequence[JobRow]) -> list[JobRow]:
        """New jobs that can start now."""
        ...

    def unfinished_rows(self, rows: Sequence[JobRow]) -> list[JobRow]:
        """Jobs of an earlier attempt at the sweep that a resumed sweep runs again."""
        ...

    def prepare_folder(self, folder: Path, row: JobRow, rows: Sequence[JobRow]) -> None:
        """Prepare the folder of a job before it starts."""
        ...

    def prune_iteration(self, folder: Path, row: JobRow, rows: Sequence[JobRow]) -> int | None:
        """The iteration of the score by which a job is pruned; None if it is not pruned."""
        ...


class IndependentJobs:
    """The part of a search without pruning: jobs run to their end, each in an empty folder."""

    def unfinished_rows(self, rows: Sequence[JobRow]) -> list[JobRow]:
        return [row for row in rows if row.state != "done"]

    def prepare_folder(self, folder: Path, row: JobRow, rows: Sequence[JobRow]) -> None:
        pass

    def prune_iteration(self, folder: Path, row: JobRow, rows: Sequence[JobRow]) -> int | None:
        return None


class FixedJobs(IndependentJobs):
    """A fixed list of jobs, all known before the sweep starts."""

    total = 0  # it generates no jobs

    def new_rows(self, folder: Path, rows: Sequence[JobRow]) -> list[JobRow]:
        return []


def run_search(
    search: Search, context: SweepContext, max_parallel: int, make: ComposeJob, plains: dict[int, dict[str, Any]]
) -> None:
    """Run waiting jobs and those that the search generates, until none are left or a signal stops the sweep.

    `plains`: by job, the configurations of jobs that are already composed. Any error of the search stops running jobs,
    which save first: none trains on while its row is closed.
    """
    pool = JobPool(context, max_parallel)
    try:
        _run_pool(pool, search, context, make, plains)
    except Exception:
        pool.stop()
        raise


def _run_pool(
    pool: JobPool, search: Search, context: SweepContext, make: ComposeJob, plains: dict[int, dict[str, Any]]
) -> None:
    started: set[int] = set()
    judged: dict[int, int] = {}  # by job, size in bytes of the metrics at its last check
    while True:
        rows = read_rows(context.folder)
        if not pool.is_stopping:
            new = search.new_rows(context.folder, rows)
            _compose_jobs(new, make, plains)
            if new:
                sweep_folder.add_rows(context.folder, new)
                continue  # the search may generate more jobs if one is refused
        waiting = [row for row in rows if row.state == "waiting" and row.job in plains and row.job not in started]
        while waiting and pool.has_room:
            row = waiting.pop(0)
            search.prepare_folder(context.folder, row, rows)
            started.add(row.job)
            pool.start(row, plains[row.job])
        ended = pool.reap()
        if ended:
            _prune_ended_jobs(search, context.folder, ended)
            continue
        if not pool.running_jobs and (pool.is_stopping or not waiting):
            return
        _prune_jobs(search, context.folder, rows, pool, judged)
        time.sleep(POLL_S)


def run_search_in_rounds(
    search: Search,
    context: SweepContext,
    launch: Callable[[Sequence[JobRow]], None],
    make: ComposeJob,
    plains: dict[int, dict[str, Any]],
) -> None:
    """Launch all waiting jobs together and wait for them, then the jobs that the search generates from their results.

    `launch`: runs jobs with a launcher of Hydra, such as that of SLURM, and waits for their end.
    """
    started: set[int] = set()
    while not (context.folder / sweep_folder.STOP_FILE).exists():
        rows = read_rows(context.folder)
        new = search.new_rows(context.folder, rows)
        _compose_jobs(new, make, plains)
        if new:
            sweep_folder.add_rows(context.folder, new)
            continue
        waiting = [row for row in rows if row.state == "waiting" and row.job in plains and row.job not in started]
        if not waiting:
            return
        started |= {row.job for row in waiting}
        launch(waiting)


def _prune_jobs(search: Search, folder: Path, rows: Sequence[JobRow], pool: JobPool, judged: dict[int, int]) -> None:
    """Stop running jobs that the search prunes; a job is checked again when its metrics have grown."""
    for row in rows:
        if (
            row.job not in pool.running_jobs
            or row.pruned_at is not None
            or judged.get(row.job) == (size := _metrics_size(folder, row))
        ):
            continue
        judged[row.job] = size
        at = search.prune_iteration(folder, row, rows)
        if at is not None:
            print_text(f"job {row.job} is pruned: its best score up to iteration {at} is below the median")
            pool.prune(row.job, at)


def _metrics_size(folder: Path, row: JobRow) -> int:
    """The size of the metrics of a job in bytes."""
    try:
        return (folder / row.folder / "metrics.jsonl").stat().st_size
    except OSError:
        return 0


def _prune_ended_jobs(search: Search, folder: Path, ended: Sequence[int]) -> None:
    """Mark jobs as pruned that completed before they were checked, so that pruning does not depend on speed."""
    rows = read_rows(folder)
    for row in rows:
        if row.job in ended and row.state == "done":
            at = row.pruned_at if row.pruned_at is not None else search.prune_iteration(folder, row, rows)
            if at is not None:
                with update_row(folder, row.job) as saved_row:
                    saved_row.state, saved_row.pruned_at = "pruned", at


def resume_rows(folder: Path, search: Search, make: ComposeJob) -> tuple[list[JobRow], dict[int, dict[str, Any]]]:
    """The rows of a resumed sweep, with updated states, and the configurations of its unfinished jobs."""
    rows = read_rows(folder)
    for row in rows:
        if row.state != "pruned" and row.pruned_at is None and sweep_folder.is_done(folder / row.folder):
            sweep_folder.set_state(row, "done", 0, None)
            sweep_folder.copy_run_result(row, folder / row.folder)
        elif row.pruned_at is not None:
            sweep_folder.set_state(row, "pruned", 0, None)
    unfinished = [row for row in search.unfinished_rows(rows) if row.state not in sweep_folder.FINISHED_STATES]
    for row in unfinished:
        sweep_folder.set_state(row, "waiting", None, None)
    plains: dict[int, dict[str, Any]] = {}
    _compose_jobs(unfinished, make, plains)
    return rows, plains


def _compose_jobs(rows: Sequence[JobRow], make: ComposeJob, plains: dict[int, dict[str, Any]]) -> None:
    """Compose the jobs of rows into `plains`; an invalid job gets the state `refused`."""
    for row in rows:
        try:
            plains[row.job] = make(row)
        except IppoError as error:
            sweep_folder.set_state(row, "refused", error.exit_code, str(error))
            print_text(f"job {row.job} is refused: {' '.join(str(error).split())}")


def score_curve(folder: Path, row: JobRow) -> list[tuple[int, float]]:
    """Iterations and held-out scores of a job so far; of a pruned job up to the iteration of pruning."""
    metric = read_metric_name(folder / row.folder)
    return [] if metric is None else read_curve(folder / row.folder, metric, row.pruned_at)


def final_score(folder: Path, row: JobRow) -> float | None:
    """The last held-out score of a completed or pruned job; None for others, and if it is NaN."""
    if row.pruned_at is None and "last" in row.score and row.score["last"]["score"] is None:
        return None
    curve = score_curve(folder, row) if row.state in sweep_folder.FINISHED_STATES else []
    return curve[-1][1] if curve else None
