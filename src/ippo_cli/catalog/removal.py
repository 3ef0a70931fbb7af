"""Removes run folders, and files that no run needs: plans first, then removes what the plan lists."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ippo_cli.catalog.entries import RunEntry, describe_run, folder_size, list_runs
from ippo_cli.config.errors import ConfigError, convert_storage_errors
from ippo_cli.config.text import format_age
from ippo_cli.runs.folder import RUN_LOCK, START_LOCK, display_path, is_lock_held, list_checkpoints, lock_folder
from ippo_cli.runs.records import SKIPPED_FOLDERS, RunRecord

REMOVAL_PREFIX = ".removing-"  # name of a folder while it is removed; a kill leaves no partial run
DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Removal:
    """One folder to remove, or to keep, and why. `size`: bytes."""

    folder: Path
    size: int
    reason: str
    is_run: bool = True


def plan_removals(paths: Sequence[Path]) -> list[Removal]:
    """The runs to remove. Raises `ConfigError` for a path that is not a run, is a link, is in use, or contains runs."""
    return [_check_removable(path) for path in {path.resolve(): path for path in paths}.values()]


def _check_removable(path: Path) -> Removal:
    typed = display_path(path)
    if path.is_symlink():
        raise ConfigError(typed, "is a link", f"name the folder that it points to: {os.path.realpath(path)}")
    if not (path / "run.json").is_file():
        raise ConfigError(typed, "is not a run's folder", "use the folder with run.json; ippo-runs lists them")
    if _is_active(path):
        raise ConfigError(typed, "is in use by another process", "stop the run first")
    if (nested := _nested_run(path)) is not None:
        raise ConfigError(typed, f"contains another run, {display_path(nested)}", "move or remove that one first")
    entry = describe_run(RunRecord(path))
    users = _runs_with_weights_of(path)
    more = f" and {len(users) - 1} more" if len(users) > 1 else ""
    needed = f"; {display_path(users[0])}{more} started from its weights and needs them to resume" if users else ""
    return Removal(path, entry.size, entry.state + needed)


def _nested_run(run: Path) -> Path | None:
    """A run below the folder of another one, where a command that was typed in that folder puts it."""
    return next((file.parent for file in sorted(run.glob("*/**/run.json"))), None)


def _runs_with_weights_of(run: Path) -> list[Path]:
    """Runs of the same output folder with initial models that are files of this run."""
    folder = run.resolve()
    records = sorted(folder.parent.parent.glob("*/*/initial/*.json"))
    users = dict.fromkeys(file.parents[1] for file in records if _initial_model(file).is_relative_to(folder))
    return [user for user in users if user != folder]


def _initial_model(record: Path) -> Path:
    """The folder from which an initial model was loaded; the root folder if the record cannot be read."""
    try:
        return Path(str(json.loads(record.read_text())["model"])).resolve()
    except (OSError, ValueError, KeyError, TypeError):
        return Path("/")


def plan_cleaning(folders: Sequence[Path], older_than_days: float) -> tuple[list[Removal], list[Removal]]:
    """What to remove below the folders, and failed runs that are retained.

    Removes failed and interrupted runs without a checkpoint, and unfinished checkpoint folders of runs that no process
    holds, if nothing has changed in them for `older_than_days`.
    """
    before = time.time() - older_than_days * DAY_S
    removals, retained = [], []
    for entry in list_runs(folders):
        reason = _keep_reason(entry, before)
        if reason is None:
            removals.append(Removal(entry.folder, entry.size, f"{entry.state}, has no checkpoint"))
            continue
        if entry.state in ("failed", "interrupted", "unreadable"):
            retained.append(Removal(entry.folder, entry.size, reason))
        if not _is_active(entry.folder):
            removals += _find_unfinished(entry.folder, before)
    leftovers = {path.resolve(): path for folder in folders for path in _find_leftovers(folder)}.values()
    removals += [
        Removal(path, folder_size(path), "an interrupted removal", is_run=False)
        for path in leftovers
        if path.lstat().st_mtime < before
    ]
    return removals, retained


def _keep_reason(entry: RunEntry, before: float) -> str | None:
    """Why a run is retained; None if it is to be removed."""
    if entry.state not in ("failed", "interrupted"):
        return "run.json cannot be read" if entry.state == "unreadable" else entry.state
    if _is_active(entry.folder):
        return "is in use by another process"
    if _nested_run(entry.folder) is not None:
        return "contains another run"
    if count := len(list_checkpoints(entry.folder / "checkpoints")):
        return f"can be resumed from {count} checkpoint{'s' if count > 1 else ''}"
    if entry.changed >= before:
        return f"changed {format_age(time.time() - entry.changed)} ago"
    return None


def _find_unfinished(run: Path, before: float) -> Iterator[Removal]:
    """Checkpoint folders of a run that were not completed."""
    folder = run / "checkpoints"
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        is_unfinished = path.name.endswith(".tmp") or (path.name.startswith(".") and path.name.endswith(".partial"))
        if is_unfinished and path.is_dir() and not path.is_symlink() and _newest_time(path) < before:
            yield Removal(path, folder_size(path), "an unfinished checkpoint", is_run=False)


def _newest_time(folder: Path) -> float:
    """The time of the last change of a folder or anything below it."""
    return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))


def _find_leftovers(folder: Path) -> Iterator[Path]:
    """Folders of interrupted removals."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_symlink() or not path.is_dir() or path.name in SKIPPED_FOLDERS:
            continue
        if path.name.startswith(REMOVAL_PREFIX):
            yield path
        elif not path.name.startswith(".") and not (path / "run.json").is_file():
            yield from _find_leftovers(path)


def _is_active(folder: Path) -> bool:
    """Whether a process trains the run or is about to resume it."""
    return is_lock_held(folder / START_LOCK) or is_lock_held(folder / RUN_LOCK)


def remove(removal: Removal) -> None:
    """Remove a folder of a plan. Holds the run's locks, so that no process resumes it in the meantime.

    Renames the folder first, so that an interrupted removal leaves no partial run. Links are removed, never followed.
    Raises `ResumeError` if the run is in use, and `StorageError`.
    """
    with ExitStack() as locks, convert_storage_errors(display_path(removal.folder)):
        if removal.is_run:
            for name in (RUN_LOCK, START_LOCK):
                locks.enter_context(lock_folder(removal.folder, name=name))
        place = removal.folder
        if not place.name.startswith(REMOVAL_PREFIX):
            place = place.rename(place.with_name(REMOVAL_PREFIX + place.name))
        shutil.rmtree(place)
