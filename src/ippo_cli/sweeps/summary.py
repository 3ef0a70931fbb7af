"""Summarizes the folder of a sweep: the state and scores of its jobs, and means over jobs that differ only in seed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ippo_cli.compose.former_keys import convert_overrides
from ippo_cli.config.commands import shell_command
from ippo_cli.config.critic_fitting import stored_primary_metric
from ippo_cli.config.errors import ConfigError, ResumeError
from ippo_cli.runs.folder import metric_rows, run_folders
from ippo_cli.runs.intervals import CONFIDENCE, MeanInterval, mean_interval
from ippo_cli.runs.run_files import read_config_file
from ippo_cli.sweeps import folder as sweep_folder
from ippo_cli.sweeps.folder import JobRow, overrides_without_threads, read_rows, read_run
from ippo_cli.sweeps.state import STATES, is_locked, job_state, read_queue

SEED_KEY = "seed"
FAILED_STATES = ("failed", "refused")
UNFINISHED_STATES = ("preempted", "missing", *FAILED_STATES)  # states of jobs that a resumed sweep runs again
OF_SLURM = ("hydra.", "hydra/", "resume=", "sweep=", "sweep.")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """One job, from its row and the files of its run."""

    number: int
    overrides: tuple[str, ...]  # without the seed and without overrides that all jobs share
    seed: str | None  # None if all jobs share it or it was not typed
    trained_with: str | None  # override of the seed, shared or not; None if it was not typed
    state: str
    iteration: int | None  # last logged iteration
    first: float | None  # held-out score; None without an evaluation
    best: float | None
    last: float | None
    curve: tuple[tuple[int, float], ...]  # iteration and held-out score
    error: str | None
    folder: Path
    generation: int | None = None
    member: int | None = None
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """Jobs that differ only in the seed. Means include only completed and pruned jobs.

    If several jobs have the same seed, only the last counts: a repeated run is not an independent sample.
    """

    overrides: tuple[str, ...]
    jobs: tuple[JobSummary, ...]

    @property
    def ended_jobs(self) -> list[JobSummary]:
        return list({job.trained_with: job for job in self.jobs if job.state in ("done", "pruned")}.values())

    @property
    def state_counts(self) -> dict[str, int]:
        return count_states(self.jobs)

    def mean_score(self, name: str) -> MeanInterval | None:
        """The mean of the score `first`, `best` or `last`."""
        return mean_interval([value for job in self.ended_jobs if (value := getattr(job, name)) is not None])


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """The current state of a sweep."""

    folder: Path
    metric: str | None
    going_on: bool
    jobs: tuple[JobSummary, ...]
    configurations: tuple[Configuration, ...]  # sorted by mean last score, best first
    command: str | None  # command that resumes the sweep; None for runs without a sweep

    @property
    def unfinished_jobs(self) -> list[JobSummary]:
        """Jobs that are incomplete and not running."""
        return [job for job in self.jobs if job.state in UNFINISHED_STATES]


def summarize_sweep(folder: Path) -> SweepSummary:
    """Summarize the folder of a sweep, or a folder of runs. Raises `ConfigError` for another folder."""
    if (folder / sweep_folder.SWEEP_FILE).is_file():
        rows, going_on = read_rows(folder), is_locked(folder)
        command = shell_command("ippo-train", "-m", ("resume", str(folder)))
    else:
        rows, going_on, command = _read_run_rows(folder), False, None
    own, queue = _distinct_overrides(rows), read_queue(folder, rows)
    jobs = tuple(
        _summarize_job(folder, row, own[row.job], lambda run, row=row: job_state(row, run, queue, going_on=going_on))
        for row in rows
    )
    return SweepSummary(
        folder, _common_metric(job.folder for job in jobs), going_on, jobs, _group_by_configuration(jobs), command
    )


def count_states(jobs: Sequence[JobSummary]) -> dict[str, int]:
    """The number of jobs in each state."""
    states = Counter(job.state for job in jobs)
    return {state: states[state] for state in STATES if states[state]}


def read_curve(folder: Path, metric: str, until: int | None = None) -> list[tuple[int, float]]:
    """Iterations and held-out scores in the `metrics.jsonl` of a run so far, up to iteration `until`."""
    found: list[tuple[int, float]] = []
    with suppress(OSError, ResumeError):  # the last row may be incomplete
        for row, _ in metric_rows(folder / "metrics.jsonl"):
            value = row.get(f"eval/{metric}")
            if value is not None and (until is None or row["iteration"] <= until):
                found.append((int(row["iteration"]), float(value)))
    return found


def read_metric_name(folder: Path) -> str | None:
    """The primary metric of a run; None if it has no configuration yet."""
    return stored_primary_metric(read_config_file(folder).value)


def to_json_data(summary: SweepSummary) -> dict[str, Any]:
    """The summary for `json.dumps`."""
    return {
        "folder": str(summary.folder),
        "metric": summary.metric,
        "going_on": summary.going_on,
        "go_on_with": summary.command if summary.unfinished_jobs else None,
        "interval": f"t, {CONFIDENCE:.0%}",
        "states": count_states(summary.jobs),
        "configurations": [
            {
                "overrides": list(group.overrides),
                "jobs": [job.number for job in group.jobs],
                "states": group.state_counts,
                **{name: _mean_data(group.mean_score(name)) for name in ("first", "best", "last")},
            }
            for group in summary.configurations
        ],
        "jobs": [_job_data(job) for job in summary.jobs],
    }


def _job_data(job: JobSummary) -> dict[str, Any]:
    data = {name: getattr(job, name) for name in ("number", "seed", "state", "iteration", "first", "best", "last")}
    data |= {"overrides": list(job.overrides), "error": job.error, "folder": str(job.folder)}
    if job.generation is not None:
        data |= {"generation": job.generation, "member": job.member, "parent": job.parent}
    return data


def _mean_data(mean: MeanInterval | None) -> dict[str, float | int | None] | None:
    return None if mean is None else {"n": mean.count, "mean": mean.mean, "low": mean.low, "high": mean.high}


def _read_run_rows(root: Path) -> list[JobRow]:
    """Rows of runs without a sweep, such as the tasks of a job array, oldest first. Raises `ConfigError`."""
    rows = []
    for number, folder in enumerate(reversed(run_folders(root)), start=1):
        try:
            texts = convert_overrides(json.loads((folder / "overrides.json").read_text()))
        except (OSError, ValueError, TypeError):
            texts = []
        state = str(read_run(folder).get("state", "missing"))
        if state == "running" and not is_locked(folder):
            state = "missing"
        row = JobRow(number, [text for text in texts if not text.startswith(OF_SLURM)], folder.name, state)
        row.error = read_run(folder).get("error")
        rows.append(row)
    if not rows:
        raise ConfigError(
            f"{root}", "contains neither sweep.json nor runs", "use the folder of a sweep, or a folder of runs"
        )
    return rows


def _distinct_overrides(rows: Sequence[JobRow]) -> dict[int, tuple[str, ...]]:
    """By job, its overrides without those that all jobs share, and without the number of threads from the sweep.

    That number differs between jobs if the sweep was resumed with another `sweep.max_parallel`.
    """
    shared = set.intersection(*(set(row.overrides) for row in rows)) if len(rows) > 1 else set()
    return {row.job: tuple(text for text in overrides_without_threads(row) if text not in shared) for row in rows}


def _summarize_job(
    sweep: Path, row: JobRow, own: tuple[str, ...], state: Callable[[Mapping[str, Any]], str]
) -> JobSummary:
    folder = sweep / row.folder
    run = read_run(folder) if row.folder else {}
    metric = read_metric_name(folder) if row.folder else None
    curve = read_curve(folder, metric, row.pruned_at) if metric is not None else []
    scores = {name: _entry_score(entry) for name, entry in run.get("evaluation", {}).items()}
    if row.pruned_at is not None and curve:  # exclude scores after pruning
        values = [value for _, value in curve]
        scores = {"first": values[0], "best": max(values), "last": values[-1]}
    seeds = [text.partition("=")[2] for text in own if text.startswith(f"{SEED_KEY}=")]
    return JobSummary(
        number=row.job,
        overrides=tuple(text for text in own if not text.startswith(f"{SEED_KEY}=")),
        seed=seeds[-1] if seeds else None,
        trained_with=next((text for text in reversed(row.overrides) if text.startswith(f"{SEED_KEY}=")), None),
        state=state(run),
        iteration=run.get("iterations"),
        first=scores.get("first"),
        best=scores.get("best"),
        last=scores.get("last"),
        curve=tuple(curve),
        error=row.error,
        folder=folder,
        generation=row.generation,
        member=row.member,
        parent=row.parent,
    )


def _entry_score(entry: Mapping[str, Any]) -> float | None:
    value = entry.get("score")
    return float(value) if isinstance(value, int | float) else None


def _common_metric(folders: Any) -> str | None:
    return next((metric for folder in folders if (metric := read_metric_name(folder)) is not None), None)


def _group_by_configuration(jobs: Sequence[JobSummary]) -> tuple[Configuration, ...]:
    groups: dict[tuple[str, ...], list[JobSummary]] = {}
    for job in jobs:  # each member of a population is its own group
        key = job.overrides if job.generation is None else (f"job {job.number}", *job.overrides)
        groups.setdefault(key, []).append(job)
    found = [Configuration(group[0].overrides, tuple(group)) for group in groups.values()]

    def order(group: Configuration) -> tuple[bool, float]:
        mean = group.mean_score("last")
        return mean is None, -mean.mean if mean is not None else 0.0

    return tuple(sorted(found, key=order))
