"""A run's folder: creation, locking, state and metadata. Does not import torch, so that commands start fast."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import secrets
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from ippo_cli.config.commands import shell_command
from ippo_cli.config.errors import ResumeError, StorageError, convert_storage_errors
from ippo_cli.config.escape import escape_text
from ippo_cli.config.schema import Config
from ippo_cli.config.secrets import mask_secrets, redact_text
from ippo_cli.engine.launchers import job_id
from ippo_cli.runs.metric_names import present_metric_name
from ippo_cli.runs.output import print_text
from ippo_cli.runs.run_files import read_metric_row, read_state_file

PACKAGES = ("ippo-cli", "torch", "transformers", "deepspeed", "hydra-core", "omegaconf", "datasets", "tokenizers")

MANIFEST = "manifest.json"
JOB_FILE = "job.json"
PARENT = "parent.json"  # file of a run that a population copied from another one, which has the samples up to then
TRACKER_ID = "tracker_id"  # file with the trackers' id of the run
RUN_LOCK = "run.lock"
START_LOCK = "start.lock"  # held by a resuming command before it writes; its ranks take RUN_LOCK seconds later
PENDING_SUFFIX = ".next"  # suffix of a resumed run's files until its checkpoint is loaded
VISIBILITY_TIMEOUT_S = 15.0  # how long a file system may take to show one rank the files of another
CHECKPOINT_NAME = re.compile(r"step_\d+")


def relative_path(path: Path) -> str:
    """A path relative to the working directory if it is below it, else absolute; for commands and JSON."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def display_path(path: Path) -> str:
    """The same for messages: control characters and newlines of names are escaped."""
    return escape_text(relative_path(path))


def resume_command(folder: Path, *more: str | tuple[str, str], sweep: bool = False) -> str:
    """The command that resumes a run, or a sweep, from the current working directory."""
    return shell_command("ippo-train", *(["-m"] if sweep else []), ("resume", relative_path(folder)), *more)


def reserve_folder(root: Path) -> Path:
    """Create a folder below `root`, named by time and a random suffix. Raises `StorageError`."""
    for _ in range(10):
        folder = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        try:
            folder.mkdir(parents=True)
            return folder.absolute()
        except FileExistsError:
            continue
        except OSError as error:
            raise StorageError(f"output_dir: cannot create {folder} ({error.strerror})") from error
    raise StorageError(f"output_dir: no free name below {root}")


def write_atomically(path: Path, text: str) -> None:
    """Replace a small file atomically; on failure it is unchanged."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def overwrite_in_place(path: Path, text: str) -> None:
    """Overwrite a small file in its allocated disk space, which works on a full disk.

    Raises OSError, and changes nothing, if the text needs more space and the disk has none.
    """
    data = text.encode()
    with path.open("r+b") as file:
        if len(data) > os.fstat(file.fileno()).st_size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, len(data))
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def print_warning(text: str) -> None:
    """Print a `warning:` line; ignores OSError, because the output may go to a full disk."""
    with suppress(OSError):
        print_text(f"warning: {escape_text(text)}")


def write_start_files(
    folder: Path, config_yaml: str, overrides: Sequence[str], command: Sequence[str], *, resumed: bool
) -> None:
    """Write the resolved configuration, overrides, command and environment of the run.

    For a resumed run, the first two are pending until `activate_resumed_config`, so a failed resume changes nothing.
    """
    environment = describe_versions() | {"processes": distributed_environment()}
    suffix = PENDING_SUFFIX if resumed else ""
    overrides = mask_secrets(list(overrides))
    with convert_storage_errors(str(folder)):
        write_atomically(config_file(folder, resumed=resumed), config_yaml)
        write_atomically(folder / f"overrides.json{suffix}", json.dumps(overrides, indent=1) + "\n")
        with (folder / "command.txt").open("a") as file:
            file.write(redact_text(shlex.join(mask_secrets(list(command)))) + "\n")
        write_atomically(folder / "env.json", json.dumps(environment, indent=1) + "\n")
        if not resumed and (job := job_id(os.environ)) is not None:
            write_atomically(folder / JOB_FILE, json.dumps({"job": job, "overrides": overrides}, indent=1) + "\n")


def describe_versions() -> dict[str, Any]:
    """Versions of Python, the platform and the packages."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def read_owner_job(folder: Path) -> tuple[str | None, list[str]]:
    """The scheduler job that started the run, and its overrides; `(None, [])` without a scheduler."""
    try:
        known = json.loads((folder / JOB_FILE).read_text())
        return str(known["job"]), [str(text) for text in known["overrides"]]
    except FileNotFoundError:
        return None, []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResumeError(f"{folder / JOB_FILE} cannot be read ({error})") from error


def config_file(folder: Path, *, resumed: bool) -> Path:
    """The configuration file that ranks read at the start."""
    return folder / f"config.yaml{PENDING_SUFFIX if resumed else ''}"


def activate_resumed_config(folder: Path) -> None:
    """Replace the run's configuration, overrides and inputs by those of the resumed run."""
    for name in ("overrides.json", "config.yaml", "inputs.json"):
        with suppress(FileNotFoundError):  # resumed without a command
            os.replace(folder / f"{name}{PENDING_SUFFIX}", folder / name)


def distributed_environment() -> dict[str, str]:
    """The environment variables that describe the distributed setup."""
    names = ("WORLD_SIZE", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_NTASKS")
    return {name: os.environ[name] for name in names if name in os.environ}


def lock_folder(folder: Path, *, name: str = RUN_LOCK, shared: bool = False) -> IO[str]:
    """Lock a run's folder until the returned file is closed. Raises `ResumeError` if another process holds the lock."""
    with convert_storage_errors(str(folder)):
        file = (folder / name).open("a")
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ResumeError(f"{folder} is in use by another process") from None
    return file


def is_run_locked(folder: Path) -> bool:
    """Whether a process holds the folder's lock. Uses a shared lock, so concurrent checks do not see each other.

    Writes nothing, so that the times of the folder stay and a folder of another user can be read.
    """
    return is_lock_held(folder / RUN_LOCK)


def is_lock_held(file: Path) -> bool:
    """Whether a process holds a lock of `lock_folder`; False if the file does not exist."""
    try:
        with convert_storage_errors(str(file)), file.open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        if isinstance(error.__cause__, BlockingIOError):
            return True
        raise
    return False


def wait_for_folder(folder: Path) -> bool:
    """Wait until a folder created by another process is visible; False after a timeout."""
    deadline = time.monotonic() + VISIBILITY_TIMEOUT_S
    while not (is_visible := folder.is_dir()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return is_visible


def run_folders(root: Path) -> list[Path]:
    """The runs below `root`, newest first."""
    return sorted((path.parent for path in root.glob("*/run.json")), key=lambda path: path.name, reverse=True)


def read_run_state(folder: Path) -> str:
    """`state` of a run's `run.json`. Raises `ResumeError`."""
    return read_state_file(folder).value["state"]


def check_metrics(checkpoint: Path) -> None:
    """Raise `ResumeError` for a damaged row of `metrics.jsonl` before the checkpoint."""
    file = checkpoint.parents[1] / "metrics.jsonl"
    try:
        size = int(json.loads((checkpoint / "state.json").read_text())["progress"]["metrics_bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # a damaged checkpoint; loading verifies every file
    if file.is_file():
        for _, end in metric_rows(file):
            if end >= size:  # later rows are dropped on resume
                return


def metric_rows(file: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """The rows of a `metrics.jsonl` with present metric names, each with the byte at which it ends.

    Raises `ResumeError` for a damaged row.
    """
    end = 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            end += len(line)
            row = read_metric_row(line)
            if row is None:
                raise ResumeError(
                    f"{file}, line {number}: not a row of metrics; fix or delete that line, or move the file away: "
                    "training does not depend on it"
                )
            yield {present_metric_name(name): value for name, value in row.items()}, end


def mark_run_failed(folder: Path, error: str) -> None:
    """Set the state in `run.json` to failed, if rank 0 was killed before it could."""
    with suppress(OSError, ResumeError):
        error = redact_text(error)
        known = read_state_file(folder).value
        write_atomically(folder / "run.json", json.dumps(known | {"state": "failed", "error": error}, indent=1) + "\n")


def checkpoint_name(iteration: int) -> str:
    """The folder name of the checkpoint after `iteration` iterations."""
    return f"step_{iteration:08d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Committed checkpoints below a run's `checkpoints/`, oldest first."""
    checkpoints = [path for path in folder.glob("step_*") if CHECKPOINT_NAME.fullmatch(path.name)]
    checkpoints = [path for path in checkpoints if (path / MANIFEST).is_file()]
    return sorted(checkpoints, key=lambda path: int(path.name.removeprefix("step_")))


def checkpoint_world_size(checkpoint: Path) -> int | None:
    """The number of processes that wrote a checkpoint; None if it is damaged."""
    try:
        return int(json.loads((checkpoint / "state.json").read_text())["world_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check_iterations_left(checkpoint: Path, config: Config, last_iteration: int) -> None:
    """Raise `ResumeError` if the run's last iteration is before the checkpoint."""
    done = int(checkpoint.name.removeprefix("step_"))
    if last_iteration >= done:
        return
    if config.max_iterations_this_run is not None and config.max_iterations_this_run == last_iteration:
        setting, works = f"max_iterations_this_run={config.max_iterations_this_run}", "max_iterations_this_run=null"
    elif config.num_iterations is None:
        setting, works = f"num_epochs={config.num_epochs:g}", "a larger num_epochs"
    else:
        setting, works = f"num_iterations={config.num_iterations}", "a larger number"
    raise ResumeError(
        f"{setting} is less than the {done} completed iterations; use {works}, or evaluate the run as it is: "
        f"{shell_command('ippo-eval', ('run', relative_path(checkpoint.parents[1])))}"
    )


def check_world_size(checkpoint: Path, world_size: int) -> None:
    """Raise `ResumeError` if the number of processes differs from the one that wrote the checkpoint."""
    wrote = checkpoint_world_size(checkpoint)
    if wrote not in (None, world_size):  # None: damaged; loading verifies every file and reports it
        raise ResumeError(
            f"{checkpoint} was written by {wrote} processes and there are {world_size} now; "
            f"set launch.processes={wrote}, or reshard the checkpoint with checkpoint.reshard=true"
        )
