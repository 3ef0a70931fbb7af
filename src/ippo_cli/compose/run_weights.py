"""Runs as sources of weights: `critic.warm_start=RUN` and `actor.reference=RUN` mean each agent's own in that run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config
from ippo_cli.config.teams import policy_by_agent, value_holders
from ippo_cli.runs.checkpoint_files import read_pointer
from ippo_cli.runs.folder import list_checkpoints

WARM_START, REFERENCE = "critic.warm_start", "actor.reference"


def replace_runs(plain: dict[str, Any], read_config: Callable[[Path], Config]) -> None:
    """Replace runs in these keys of the agents by the folders of their weights, in place.

    The checkpoint is the one with the best score, else the newest; `RUN/checkpoints/step_N` names another. The folder
    is part of the saved configuration, so that a resumed run has the same weights. `read_config` reads the
    `config.yaml` of a run. Raises `ConfigError`.
    """
    for name, agent in plain["task"]["agents"].items():
        for key in (WARM_START, REFERENCE):
            group, _, leaf = key.partition(".")
            value = agent[group].get(leaf)
            if value is not None and (found := _find_checkpoint(key, Path(value))) is not None:
                run, checkpoint = found
                config = read_config(run / "config.yaml")
                agent[group][leaf] = str(_find_weights(key, name, value, config, checkpoint))


def _find_checkpoint(key: str, folder: Path) -> tuple[Path, Path] | None:
    """The run and the checkpoint that a folder names; None if it is neither."""
    if (folder / "overrides.json").is_file():
        checkpoints = folder / "checkpoints"
        found = read_pointer(checkpoints, "best") or next(reversed(list_checkpoints(checkpoints)), None)
        if found is None:
            raise ConfigError(f"{key}={folder}", "is a run without a checkpoint", "use another run")
        return folder, found
    run = folder.parent.parent
    if folder.parent.name == "checkpoints" and (run / "overrides.json").is_file():
        return run, folder
    return None


def _find_weights(key: str, agent: str, typed: str, config: Config, checkpoint: Path) -> Path:
    part = "critic" if key == WARM_START else "actor"
    holders = _holders(part, config)
    if agent not in holders:
        raise ConfigError(
            f"{key}={typed}",
            f"is a run without an agent {agent}; its agents are {' '.join(holders)}",
            f"use task.agents.{agent}.{key}={checkpoint}/AGENT/{part}",
        )
    folder = checkpoint / holders[agent] / part
    if not folder.is_dir():
        raise ConfigError(f"{key}={typed}", f"has no {part} of {agent}", "use a run that trained one")
    return folder


def _holders(part: str, config: Config) -> Mapping[str, str]:
    """By agent: the folder of its weights in a checkpoint."""
    return value_holders(config) if part == "critic" else policy_by_agent(config)
