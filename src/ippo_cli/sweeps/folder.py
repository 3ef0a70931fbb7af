"""A sweep's folder: `sweep.json` has one row per job, which the process that runs it keeps true; and the table."""

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

from ippo_cli.config.errors import ConfigError, ResumeError, StorageError
from ippo_cli.config.secrets import mask_secrets, redact_text
from ippo_cli.config.text import format_table
from ippo_cli.engine import launchers
from ippo_cli.runs.folder import display_path, write_atomically

SWEEP_FILE = "sweep.json"
ATTEMPT_FILE = "attempt"  # the newest one at the sweep, by a name of its own
STOP_FILE = "leaving"  # there while the sweep has been asked to leave; holds the signal's number
FINISHED_STATES = ("done", "pruned")  # states of jobs of which nothing is missing
THREADS_KEY = "launch.threads"
SCORE_KEYS = ("iteration", "score")


@dataclass
class JobRow:
    """What `sweep.json` says of one job."""

    job: int
    overrides: list[str]
    folder: str  # below the sweep's
    state: str = "waiting"  # waiting | running | done | pruned | preempted | failed | refused
    exit_code: int | None = None
    error: str | None = None
    score: dict[str, dict[str, Any]] = field(default_factory=dict)  # first, best, last: {iteration, score}
    wall_seconds: float = 0.0
    host: str | None = None  # of the process that runs the job
    pid: int | None = None
    slurm: str | None = None  # the job that SLURM runs it as, or has put back into its queue
    since: float | None = None  # when that process began, in seconds since 1970
    until: float | None = None  # when SLURM ends it at the latest
    threads: int | None = None  # its share of the cores, where the sweep has given it one
    pruned_at: int | None = None  # iteration whose score showed that the job was hopeless: it was asked to leave
    generation: int | None = None  # of a population, from 1
    member: int | None = None  # of its generation, from 1
    parent: int | None = None  # the job whose checkpoint it went on from


def reserve_sweep_folder(folder: Path, *, chosen: bool) -> Path:
    """Make the folder of a new sweep. One that the user chose may exist, and must be empty."""
    if chosen and folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"hydra.sweep.dir={folder}", "is not empty", "go on with its sweep by resume=auto, or choose another folder"
        )
    for place in (folder, folder.with_name(f"{folder.name}-{secrets.token_hex(3)}")):
        try:
            place.mkdir(parents=True, exist_ok=chosen)
            return place.absolute()
        except FileExistsError:  # two sweeps in one second
            continue
        except OSError as error:
            raise StorageError(f"hydra.sweep.dir: {place} cannot be made ({error.strerror})") from error
    raise StorageError(f"hydra.sweep.dir: {folder} is taken")


def create_sweep_file(folder: Path, arguments: Sequence[str], rows: Sequence[JobRow]) -> None:
    """Write the first `sweep.json`: as what was typed, and all jobs that are known."""
    _write_sweep_file(folder, list(arguments), list(rows))


def start_attempt(folder: Path) -> str:
    """The name of another attempt at the sweep, which is the one that counts from now on."""
    name = secrets.token_hex(6)
    write_atomically(folder / ATTEMPT_FILE, name)
    return name


def read_attempt(folder: Path) -> str:
    """The newest attempt at the sweep."""
    try:
        return (folder / ATTEMPT_FILE).read_text()
    except FileNotFoundError:
        return ""


def find_sweep(beside: Path, arguments: Sequence[str]) -> Path | None:
    """The newest sweep of these arguments, in that folder or beside it."""
    places = [beside, *sorted((file.parent for file in beside.parent.glob(f"*/{SWEEP_FILE}")), reverse=True)]
    wanted = _comparable_arguments(arguments)
    for place in places:
        with suppress(ResumeError):  # no sweep, or one that cannot be read: another's
            if _comparable_arguments(read_arguments(place)) == wanted:
                return place.absolute()
    return None


def is_launcher_override(text: str) -> bool:
    """Whether an argument says where jobs run, which may differ when a sweep goes on."""
    return text.startswith(("hydra/launcher=", "hydra.launcher.", "+hydra.launcher.", "sweep.at_once="))


def read_arguments(folder: Path) -> list[str]:
    """What was typed to start the sweep."""
    return [str(text) for text in _read_sweep_file(folder)["arguments"]]


def read_rows(folder: Path) -> list[JobRow]:
    """All jobs, as they stand in `sweep.json`."""
    try:
        return [JobRow(**row) for row in _read_sweep_file(folder)["jobs"]]
    except TypeError as error:
        raise ResumeError(f"{folder / SWEEP_FILE} cannot be read ({error})") from error


@contextmanager
def update_row(folder: Path, job: int) -> Iterator[JobRow]:
    """One job's row, to be changed inside of this; other processes wait."""
    with (folder / ".sweep.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        rows = read_rows(folder)
        row = next((row for row in rows if row.job == job), None)
        if row is None:  # of a sweeper that makes up its jobs on the way
            row = JobRow(job=job, overrides=[], folder="")
            rows.append(row)
        yield row
        _write_sweep_file(folder, read_arguments(folder), rows)


def add_rows(folder: Path, rows: Sequence[JobRow]) -> None:
    """Rows of jobs that were made up on the way."""
    with (folder / ".sweep.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _write_sweep_file(folder, read_arguments(folder), [*read_rows(folder), *rows])


def read_run(folder: Path) -> dict[str, Any]:
    """A job's `run.json`; nothing where it never began."""
    try:
        known = json.loads((folder / "run.json").read_text())
        return known if isinstance(known, dict) else {}
    except (OSError, ValueError):
        return {}


def is_done(folder: Path) -> bool:
    """Whether a job's run came to its end."""
    return read_run(folder).get("state") == "done"


def copy_run_result(row: JobRow, folder: Path) -> None:
    """Take score and time over from the job's `run.json`."""
    known = read_run(folder)
    evaluation = known.get("evaluation", {})
    row.score = {name: {key: entry[key] for key in SCORE_KEYS} for name, entry in evaluation.items()}
    row.wall_seconds = known.get("wall_seconds", 0.0)


def mark_running(row: JobRow) -> None:
    """Say that this process runs the job now."""
    row.state, row.exit_code, row.error = "running", None, None
    row.host, row.pid, row.slurm = socket.gethostname(), os.getpid(), launchers.submitted_job(os.environ)
    row.since, row.until = time.time(), None if row.slurm is None else launchers.job_end_time(os.environ)


def set_state(row: JobRow, state: str, exit_code: int | None, error: str | None) -> None:
    """Say how the job ended."""
    row.state, row.exit_code, row.error = state, exit_code, error
    row.host = row.pid = row.slurm = row.since = row.until = None


def overrides_without_threads(row: JobRow) -> list[str]:
    """A job's overrides without the share of the cores that the sweep has given it."""
    return [text for text in row.overrides if row.threads is None or text != f"{THREADS_KEY}={row.threads}"]


def distinct_overrides(rows: Sequence[JobRow]) -> dict[int, str]:
    """What tells each job from the others: its overrides without those that all jobs share."""
    shared = set.intersection(*(set(row.overrides) for row in rows)) if len(rows) > 1 else set()
    return {row.job: " ".join(text for text in row.overrides if text not in shared) for row in rows}


def sweep_table(folder: Path, rows: Sequence[JobRow]) -> str:
    """One line per job, and more where its overrides are long: they are never cut."""
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
    first, best, last = (row.score[name]["score"] for name in ("first", "best", "last"))
    return f"{first:.3f} -> {best:.3f}, {last:.3f}"


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def _comparable_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments in an order of their own; where the jobs run is none of what they are."""
    return sorted(
        (text for text in mask_secrets(list(arguments)) if not is_launcher_override(text)),
        key=lambda text: text.partition("=")[0],
    )


def _read_sweep_file(folder: Path) -> dict[str, Any]:
    try:
        known = json.loads((folder / SWEEP_FILE).read_text())
        return {"arguments": known["arguments"], "jobs": known["jobs"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResumeError(f"{folder / SWEEP_FILE} cannot be read ({error})") from error


def _write_sweep_file(folder: Path, arguments: list[str], rows: list[JobRow]) -> None:
    jobs = [asdict(row) | {"error": None if row.error is None else redact_text(row.error)} for row in rows]
    known = {"arguments": mask_secrets(arguments), "jobs": mask_secrets(jobs)}
    write_atomically(folder / SWEEP_FILE, json.dumps(known, indent=1) + "\n")
