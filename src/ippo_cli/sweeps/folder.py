"""The folder of a sweep: `sweep.json` has one row per job, updated by the process that runs the job; and the table."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ippo_cli.compose.former_keys import convert_overrides
from ippo_cli.config.errors import ConfigError, ResumeError, StorageError, convert_storage_errors
from ippo_cli.config.secrets import mask_secrets, redact_text
from ippo_cli.config.text import format_table
from ippo_cli.engine import launchers
from ippo_cli.runs.folder import display_path, write_atomically
from ippo_cli.runs.run_files import read_state_file

SWEEP_FILE = "sweep.json"
ATTEMPT_FILE = "attempt"  # holds the random name of the newest attempt
STOP_FILE = "leaving"  # exists after a signal has stopped the sweep; holds the signal number
FINISHED_STATES = ("done", "pruned")  # states of jobs that a resumed sweep does not run again
THREADS_KEY = "launch.threads"
SCORE_KEYS = ("iteration", "score")


@dataclass
class JobRow:
    """The record of one job in `sweep.json`."""

    job: int
    overrides: list[str]
    folder: str  # relative to the folder of the sweep
    state: str = "waiting"  # waiting | running | done | pruned | preempted | failed | refused
    exit_code: int | None = None
    error: str | None = None
    score: dict[str, dict[str, Any]] = field(default_factory=dict)  # first, best, last: {iteration, score}
    wall_seconds: float = 0.0
    host: str | None = None  # host of the process that runs the job
    pid: int | None = None
    slurm: str | None = None  # id of the SLURM job that runs it or is requeued to run it
    since: float | None = None  # start time of that process, in seconds since 1970
    until: float | None = None  # end of the SLURM time limit, in seconds since 1970
    threads: int | None = None  # launch.threads that the sweep assigned; None if the user set it
    pruned_at: int | None = None  # iteration of the score by which the job was pruned
    generation: int | None = None  # generation of a population, from 1
    member: int | None = None  # number within the generation, from 1
    parent: int | None = None  # the job from whose checkpoint it was started


def reserve_sweep_folder(folder: Path, *, chosen: bool) -> Path:
    """Create the folder of a new sweep. A folder that the user chose may exist, and must be empty.

    Raises `ConfigError` or `StorageError`.
    """
    if chosen and folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"hydra.sweep.dir={folder}", "is not empty", "resume its sweep with resume=auto, or choose another folder"
        )
    for place in (folder, folder.with_name(f"{folder.name}-{secrets.token_hex(3)}")):
        try:
            place.mkdir(parents=True, exist_ok=chosen)
            return place.absolute()
        except FileExistsError:  # two sweeps started in the same second
            continue
        except OSError as error:
            raise StorageError(f"hydra.sweep.dir: {place} cannot be created ({error.strerror})") from error
    raise StorageError(f"hydra.sweep.dir: {folder} already exists; choose another folder")


def create_sweep_file(folder: Path, arguments: Sequence[str], rows: Sequence[JobRow]) -> None:
    """Write the first `sweep.json`: the typed arguments and the rows of all known jobs."""
    _write_sweep_file(folder, list(arguments), list(rows))


def start_attempt(folder: Path) -> str:
    """Start a new attempt at the sweep, which invalidates queued jobs of earlier ones. Returns its name."""
    name = secrets.token_hex(6)
    write_atomically(folder / ATTEMPT_FILE, name)
    return name


def read_attempt(folder: Path) -> str:
    """The name of the newest attempt at the sweep; empty if there is none."""
    try:
        return (folder / ATTEMPT_FILE).read_text()
    except FileNotFoundError:
        return ""


def find_sweep(beside: Path, arguments: Sequence[str]) -> Path | None:
    """The newest sweep that was started with these arguments, in the folder or one of its siblings."""
    places = [beside, *sorted((file.parent for file in beside.parent.glob(f"*/{SWEEP_FILE}")), reverse=True)]
    wanted = _comparable_arguments(arguments)
    for place in places:
        with suppress(ResumeError):  # no sweep, or an unreadable one: skip it
            if _comparable_arguments(read_arguments(place)) == wanted:
                return place.absolute()
    return None


def is_launcher_override(text: str) -> bool:
    """Whether an argument selects how jobs are launched, which may change when a sweep is resumed."""
    return text.startswith(("hydra/launcher=", "hydra.launcher.", "+hydra.launcher.", "sweep.max_parallel="))


def read_arguments(folder: Path) -> list[str]:
    """The arguments that started the sweep. Raises `ResumeError`."""
    return [str(text) for text in _read_sweep_file(folder)["arguments"]]


def read_rows(folder: Path) -> list[JobRow]:
    """The rows of all jobs in `sweep.json`. Raises `ResumeError`."""
    try:
        return [JobRow(**row) for row in _read_sweep_file(folder)["jobs"]]
    except TypeError as error:
        raise ResumeError(f"{folder / SWEEP_FILE} cannot be read ({error})") from error


@contextmanager
def update_row(folder: Path, job: int) -> Iterator[JobRow]:
    """Yield the row of one job and save its changes, under a lock between processes."""
    with (folder / ".sweep.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        rows = read_rows(folder)
        row = next((row for row in rows if row.job == job), None)
        if row is None:  # a job of a sweeper that generates its jobs while it runs
            row = JobRow(job=job, overrides=[], folder="")
            rows.append(row)
        yield row
        _write_sweep_file(folder, read_arguments(folder), rows)


def add_rows(folder: Path, rows: Sequence[JobRow]) -> None:
    """Append rows of jobs that were generated during the sweep."""
    with (folder / ".sweep.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _write_sweep_file(folder, read_arguments(folder), [*read_rows(folder), *rows])


def read_run(folder: Path) -> dict[str, Any]:
    """The `run.json` of a job; empty if the job never started."""
    try:
        return read_state_file(folder).value
    except ResumeError:
        return {}


def is_done(folder: Path) -> bool:
    """Whether the run of a job is complete."""
    return read_run(folder).get("state") == "done"


def copy_run_result(row: JobRow, folder: Path) -> None:
    """Copy scores and wall time from the `run.json` of the job into its row."""
    known = read_run(folder)
    evaluation = known.get("evaluation", {})
    row.score = {name: {key: entry.get(key) for key in SCORE_KEYS} for name, entry in evaluation.items()}
    row.wall_seconds = known.get("wall_seconds", 0.0)


def mark_running(row: JobRow) -> None:
    """Record in the row that this process runs the job."""
    row.state, row.exit_code, row.error = "running", None, None
    row.host, row.pid, row.slurm = socket.gethostname(), os.getpid(), launchers.submitted_job(os.environ)
    row.since, row.until = time.time(), None if row.slurm is None else launchers.job_end_time(os.environ)


def set_state(row: JobRow, state: str, exit_code: int | None, error: str | None) -> None:
    """Set the state of a job that is not running, and clear its process."""
    row.state, row.exit_code, row.error = state, exit_code, error
    row.host = row.pid = row.slurm = row.since = row.until = None


def overrides_without_threads(row: JobRow) -> list[str]:
    """The overrides of a job without the `launch.threads` that the sweep assigned."""
    return [text for text in row.overrides if row.threads is None or text != f"{THREADS_KEY}={row.threads}"]


def distinct_overrides(rows: Sequence[JobRow]) -> dict[int, str]:
    """By job, its overrides without those that all jobs share."""
    shared = set.intersection(*(set(row.overrides) for row in rows)) if len(rows) > 1 else set()
    return {row.job: " ".join(text for text in row.overrides if text not in shared) for row in rows}


def sweep_table(folder: Path, rows: Sequence[JobRow]) -> str:
    """One table row per job; long overrides are wrapped, never truncated."""
    own = distinct_overrides(rows)
    cells = [
        [
            str(row.job),
            own[row.job],
            row.state,
            _format_scores(row),
            _format_duration(row.wall_seconds),
            display_path(folder / row.folder),
        ]
        for row in rows
    ]
    return "\n".join(
        format_table([["job", "overrides", "state", "score: first -> best, last", "time", "folder"], *cells])
    )


def _format_scores(row: JobRow) -> str:
    if "first" not in row.score:
        return "-"
    scores = [(row.score.get(name) or {}).get("score") for name in ("first", "best", "last")]
    first, best, last = ("-" if score is None else f"{score:.3f}" for score in scores)
    return f"{first} -> {best}, {last}"


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def _comparable_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments sorted by key, with masked secrets and without those of the launcher."""
    return sorted(
        (text for text in mask_secrets(list(arguments)) if not is_launcher_override(text)),
        key=lambda text: text.partition("=")[0],
    )


def _read_sweep_file(folder: Path) -> dict[str, Any]:
    try:
        known = json.loads((folder / SWEEP_FILE).read_text())
        return {
            "arguments": convert_overrides(known["arguments"]),
            "jobs": [job | {"overrides": convert_overrides(job["overrides"])} for job in known["jobs"]],
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResumeError(f"{folder / SWEEP_FILE} cannot be read ({error})") from error


def _write_sweep_file(folder: Path, arguments: list[str], rows: list[JobRow]) -> None:
    jobs = [asdict(row) | {"error": None if row.error is None else redact_text(row.error)} for row in rows]
    known = {"arguments": mask_secrets(arguments), "jobs": mask_secrets(jobs)}
    with convert_storage_errors(str(folder)):
        write_atomically(folder / SWEEP_FILE, json.dumps(known, indent=1) + "\n")
