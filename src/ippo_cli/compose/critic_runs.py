"""`critic.warm_start=RUN`: each agent starts from its own critic in a checkpoint of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.teams import value_holders
from ippo_cli.runs.checkpoint_files import read_pointer
from ippo_cli.runs.folder import list_checkpoints

KEY = "critic.warm_start"


def replace_critic_runs(plain: dict[str, Any]) -> None:
    """Replace runs in `critic.warm_start` of the agents by the folders of their critics, in place.

    The checkpoint is the one with the best score, else the newest; `RUN/checkpoints/step_N` names another. The folder
    is part of the saved configuration, so that a resumed run starts from the same critic. Raises `ConfigError`.
    """
    for name, agent in plain["task"]["agents"].items():
        start = agent["critic"].get("warm_start")
        if start is not None and (found := _find_checkpoint(Path(start))) is not None:
            agent["critic"]["warm_start"] = str(_find_critic(name, start, *found))


def _find_checkpoint(folder: Path) -> tuple[Path, Path] | None:
    """The run and the checkpoint that a folder names; None if it is neither."""
    if (folder / "overrides.json").is_file():
        checkpoints = folder / "checkpoints"
        found = read_pointer(checkpoints, "best") or next(reversed(list_checkpoints(checkpoints)), None)
        if found is None:
            raise ConfigError(f"{KEY}={folder}", "is a run without a checkpoint", "use another run")
        return folder, found
    run = folder.parent.parent
    if folder.parent.name == "checkpoints" and (run / "overrides.json").is_file():
        return run, folder
    return None


def _find_critic(agent: str, start: str, run: Path, checkpoint: Path) -> Path:
    from ippo_cli.compose.load import build_config, read_run_config

    holders = value_holders(build_config(read_run_config(run / "config.yaml")))
    if agent not in holders:
        raise ConfigError(
            f"{KEY}={start}",
            f"is a run without an agent {agent}; its agents are {' '.join(holders)}",
            f"use task.agents.{agent}.{KEY}={run}/checkpoints/{checkpoint.name}/AGENT/critic",
        )
    folder = checkpoint / holders[agent] / "critic"
    if not folder.is_dir():
        raise ConfigError(f"{KEY}={start}", f"has no critic of {agent}", "use a run with a critic, such as mode=critic")
    return folder
