"""A temporary copy of a run from which its next iterations are executed again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ippo_cli.compose.load import to_yaml
from ippo_cli.compose.resume import saved_config
from ippo_cli.config import schema
from ippo_cli.runs.folder import checkpoint_name, config_file
from ippo_cli.runs.replay import write_earlier_rows, write_replay
from ippo_cli.verification.recorded import RecordedRun, read_state


def create_copy(run: RecordedRun, base: int, folder: Path) -> None:
    """Create a folder from which training continues after iteration `base`; 0 starts from the initial weights.

    Files of checkpoints, initial models and opponents are links, as they are only read. Answers of judges are copied:
    the execution reads them, and may add others.
    """
    folder.mkdir(parents=True)
    _link_files(run.folder / "initial", folder / "initial")
    write_earlier_rows(folder, [row.value for number, row in sorted(run.rows.items()) if 0 < number <= base])
    if (run.folder / "reward").is_dir():
        shutil.copytree(run.folder / "reward", folder / "reward")
    if base:
        checkpoint = run.checkpoints[base]
        _link_files(checkpoint, folder / "checkpoints" / checkpoint.name)
        for step, _ in (read_state(checkpoint).get("partners") or {}).get("snapshots") or ():
            name = checkpoint_name(int(step))
            _link_files(run.folder / "partners" / name, folder / "partners" / name)


def _link_files(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source.absolute(), target, copy_function=os.symlink)


def write_execution_config(
    folder: Path,
    plain: Mapping[str, Any],
    evaluate_at: Collection[int],
    sample_at: Collection[int],
    *,
    is_resumed: bool,
) -> None:
    """Write the configuration of an execution where its ranks read it."""
    config_file(folder, resumed=is_resumed).write_text(to_yaml(dict(plain)))
    config_file(folder, resumed=False).write_text(to_yaml(dict(plain)))
    write_replay(folder, evaluate_at, sample_at)


def execution_config(plain: Mapping[str, Any], last: int, threads: int | None, device: str | None) -> dict[str, Any]:
    """A run's configuration without trackers, deadlines and further checkpoints, with its threads and device."""
    names = {field.name for field in fields(schema.TrackerConfig)}
    tracker = {name: value for name, value in plain["tracker"].items() if name in names}
    silent = {"kind": "none", "tensorboard": False, "callback": None, "console": "plain", "profile": False}
    saved = {"every": 0, "every_seconds": None, "best": False, "save_deadline": None, "reshard": True}
    launch: dict[str, Any] = {} if threads is None else {"threads": threads}
    if device is not None:
        launch["device"] = device
    return {
        **plain,
        "max_iterations_this_run": last,
        "debug_faults": [],
        "tracker": tracker | silent,
        "checkpoint": plain["checkpoint"] | saved,
        "launch": plain["launch"] | launch,
    }


def config_at(run: RecordedRun, iteration: int, scratch: Path) -> dict[str, Any]:
    """The plain configuration with which the run executed an iteration: the last one that was recorded before it.

    Without a history it is the present `config.yaml`. Raises `ResumeError` for an unreadable one.
    """
    texts = [
        start.content["config"] for start in run.starts if "config" in start.content and start.iteration < iteration
    ]
    if not texts:
        return saved_config(run.folder)
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "config.yaml").write_text(str(texts[-1]))
    shutil.copy(run.folder / "overrides.json", scratch / "overrides.json")
    return saved_config(scratch)
