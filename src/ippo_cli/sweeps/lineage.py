"""Copies the folder of a run so that a child run can resume from it; files that never change are hard links."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from ippo_cli.config.errors import ResumeError, convert_storage_errors
from ippo_cli.runs.folder import (
    JOB_FILE,
    PARENT,
    PENDING_SUFFIX,
    RUN_LOCK,
    START_LOCK,
    TRACKER_ID,
    list_checkpoints,
    write_atomically,
)
from ippo_cli.runs.run_files import read_state_file

EXCLUDED_FILES = (
    RUN_LOCK,
    START_LOCK,
    JOB_FILE,
    "logs",
    "tb",
    "wandb",
    TRACKER_ID,
    "samples",
    "evaluations",
    "profile",
    "report.html",
    "verification.json",  # certifies the parent alone
)  # files that belong to one run only


def copy_parent_run(parent: Path, child: Path) -> None:
    """Create the folder of a run that resumes from the newest checkpoint of `parent`; keep one that has a checkpoint.

    Files of checkpoints and initial weights are never modified, so that they are hard links where the file system
    supports them. Raises `ResumeError` if the parent has no checkpoint.
    """
    if list_checkpoints(child / "checkpoints"):
        return
    if not list_checkpoints(parent / "checkpoints"):
        raise ResumeError(f"{parent} has no checkpoint from which {child.name} could start")
    partial = child.with_name(f".{child.name}.partial")
    with convert_storage_errors(str(child)):
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(child, ignore_errors=True)  # of an attempt without a checkpoint
        partial.mkdir(parents=True)
        for entry in parent.iterdir():
            if entry.name in EXCLUDED_FILES or entry.name.endswith((".tmp", PENDING_SUFFIX)):
                continue
            if entry.is_dir():
                shutil.copytree(
                    entry,
                    partial / entry.name,
                    copy_function=_link,
                    ignore=shutil.ignore_patterns("*.tmp", "*.partial"),
                )
            else:
                shutil.copy2(entry, partial / entry.name)
        newest = int(list_checkpoints(parent / "checkpoints")[-1].name.removeprefix("step_"))
        write_atomically(partial / PARENT, json.dumps({"run": parent.name, "iteration": newest}) + "\n")
        known = read_state_file(parent).value
        write_atomically(partial / "run.json", json.dumps(known | {"state": "preempted"}, indent=1) + "\n")
        partial.rename(child)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links
        shutil.copy2(source, target)
