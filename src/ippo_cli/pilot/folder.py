"""Folders of pilots: one for a pilot in progress, which is removed, and one with the reports. Does not import torch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ippo_cli.config.schema import Config
from ippo_cli.runs.folder import reserve_folder

REPORTS = "pilot"  # folder of the reports, below output_dir/name


def work_root(config: Config) -> Path:
    """The folder of pilots in progress; commands skip it in a search for runs, because its name begins with a dot."""
    return Path(config.output_dir) / config.name / f".{REPORTS}"


def report_path(folder: Path) -> Path:
    """The JSON report of the pilot with this work folder; the text report has the suffix `.txt`."""
    return folder.parent.with_name(REPORTS) / f"{folder.name}.json"


@contextmanager
def work_folder(config: Config) -> Iterator[Path]:
    """A folder for a pilot in progress, which is removed afterwards. Raises `StorageError`."""
    folder = reserve_folder(work_root(config))
    try:
        yield folder
    finally:
        remove_work(folder)


def remove_work(folder: Path) -> None:
    """Remove the folder of a pilot in progress, and the one above it if it is the last."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()
