"""Resolution of `run=` to a run and a checkpoint: a run's folder, a folder above or below it, or the newest run."""

from __future__ import annotations

import re
from pathlib import Path

from ippo_cli.config.commands import expand_home
from ippo_cli.config.errors import ConfigError
from ippo_cli.runs.folder import display_path

DEFAULT_ROOT = "outputs"
"""Folder searched by `run=latest`: the default of `output_dir`."""
CHECKPOINT = re.compile(r"step_0*(\d+)")


def find_run(typed: str, key: str = "run") -> tuple[Path, str | None]:
    """Return the run's folder, and the checkpoint if the path names one. Raises `ConfigError` if there is no run.

    `outputs/NAME` is the newest run of that name, `latest` the newest below `outputs`, and `RUN/checkpoints/step_N`
    iteration N of the run. `key`: of the argument; empty for a folder without a key.
    """
    folder = expand_home(typed).absolute()
    if _is_run(folder):
        return folder, None
    setting = f"{key}={typed}" if key else display_path(folder)
    for above in list(folder.parents)[:4]:
        if _is_run(above):
            return above, _checkpoint_from_path(above, folder, setting)
    if typed == "latest" and not folder.exists():
        folder = Path(DEFAULT_ROOT).absolute()
    runs = sorted({file.parent for pattern in ("*", "*/*", "*/*/*") for file in folder.glob(f"{pattern}/config.yaml")})
    runs = [run for run in runs if _is_run(run)]
    if not runs:
        raise ConfigError(setting, "is not a run", "use a run's folder such as outputs/NAME/DATE-ID")
    return max(runs, key=lambda run: (run / "overrides.json").stat().st_mtime), None


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and (folder / "overrides.json").is_file()


def _checkpoint_from_path(run: Path, place: Path, setting: str) -> str | None:
    """The checkpoint of a path below a run; None for the folder of all checkpoints."""
    parts = place.relative_to(run).parts
    if parts == ("checkpoints",):
        return None
    if parts[0] == "initial":
        return "initial"
    if parts[0] == "checkpoints" and (step := CHECKPOINT.fullmatch(parts[1])):
        return step[1]
    raise ConfigError(setting, f"is a part of the run {run.name}", f"use run={run}, with checkpoint= for its weights")
