"""Start a run from a composed configuration: checks, start files, and the processes that train."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ippo_cli.config.schema import Config
    from ippo_cli.runs.input_files import InputSources


def start_training(
    node: DictConfig, overrides: Sequence[str], folder: Path | None, arguments: Sequence[str], *, command: Sequence[str]
) -> Path | None:
    """Check the configuration, then train: in this process, in child ranks, or as one rank of an external launcher.

    `folder`: the run to resume; None starts a new run. `overrides` and `command` are written into the run's folder.
    `arguments`: passed to every rank of a run on several machines. Returns the run's folder; None without one on this
    process: with `mode=plan` and `mode=pilot`, and in a process that only starts the ranks of several machines.
    """
    from ippo_cli.compose.load import build_config, build_sweep_config, resolve_config, to_yaml
    from ippo_cli.config.schema import Mode
    from ippo_cli.config.sweeps import check_multirun_flag
    from ippo_cli.engine.launchers import external_world_size
    from ippo_cli.runs.input_files import input_files
    from ippo_cli.runs.launch import run_node_ranks
    from ippo_cli.runs.output import ignore_closed_output, print_status

    check_multirun_flag(build_sweep_config(node))
    plain = resolve_config(node)
    external_ranks = external_world_size()
    config = _check_start(build_config(plain), external_ranks)
    if config.mode is Mode.plan or folder is None:
        print_status("ippo: the keys are valid; loading libraries and data")
    if config.mode is Mode.plan:
        from ippo_cli.planning.plan import show_plan

        show_plan(config)
        return None
    ignore_closed_output()
    if external_ranks is None and config.launch.nodes > 1:
        run_node_ranks(arguments, config.launch.processes, config.launch.nodes)
        return None
    ranks = external_ranks or config.launch.processes
    if folder is None:
        from ippo_cli.planning.trial import check_trainable

        check_trainable(config, ranks)
    if config.mode is Mode.pilot:
        from ippo_cli.cli.start_pilot import start_pilot

        start_pilot(config, to_yaml(plain), overrides, command, external_ranks)
        return None
    if folder is not None:
        _check_newest_checkpoint(config, folder, ranks)
    start_overrides = [text for text in overrides if not text.startswith("resume=")]
    start = _RunStart(
        config=config,
        plain=plain,
        inputs=input_files(config),
        overrides=start_overrides,
        command=command,
        ranks=ranks,
        resumed=folder is not None,
    )
    with start.lock:
        return _run(start, folder, is_external=external_ranks is not None)


def _check_start(config: Config, external_ranks: int | None) -> Config:
    """Check the configuration and the environment; returns it with the folders of downloaded models."""
    from ippo_cli.compose.hub_names import check_hub_access
    from ippo_cli.compose.named_files import check_named_files
    from ippo_cli.config.checks import check_config
    from ippo_cli.config.errors import collect_errors, combine_errors
    from ippo_cli.config.hardware import world_size
    from ippo_cli.config.model_hub import download_models
    from ippo_cli.engine.launchers import detect_ranks, unused_world_size_warning
    from ippo_cli.runs.faults import arm_faults, fault_point
    from ippo_cli.runs.folder import print_warning

    size = world_size(config, external_ranks)
    if errors := collect_errors([partial(check_config, config, size), partial(check_named_files, config)]):
        raise combine_errors(errors)
    arm_faults(config.debug_faults, detect_ranks(os.environ).rank)
    fault_point("compose")
    check_hub_access(config)
    config = download_models(config)
    if (unused := unused_world_size_warning(os.environ, world_size(config, external_ranks))) is not None:
        print_warning(unused)
    return config


def _check_newest_checkpoint(config: Config, folder: Path, ranks: int) -> None:
    """Raise an error if a run cannot be resumed from its newest checkpoint with this configuration."""
    from ippo_cli.runs.folder import check_iterations_left, check_metrics, check_world_size, list_checkpoints
    from ippo_cli.runs.output import print_text

    newest = list_checkpoints(folder / "checkpoints")[-1]
    ends = [number for number in (config.max_iterations_this_run, config.num_iterations) if number is not None]
    check_iterations_left(newest, config, min(ends, default=sys.maxsize))
    if newest.name == f"step_{config.num_iterations or 0:08d}":
        print_text(f"all {config.num_iterations} iterations are done; train further with num_iterations=MORE")
    check_metrics(newest)
    if not config.checkpoint.reshard:
        check_world_size(newest, ranks)


@dataclass(frozen=True, kw_only=True)
class _RunStart:
    """What is written into the folder of a run before it trains."""

    config: Config
    plain: dict[str, Any]  # the configuration before models are downloaded
    inputs: InputSources
    overrides: Sequence[str]
    command: Sequence[str]
    ranks: int
    resumed: bool
    lock: ExitStack = field(default_factory=ExitStack)  # held while a resumed run trains

    def write(self, folder: Path) -> None:
        """Write the start files, and print what differs from the run's earlier start."""
        from ippo_cli.compose.load import iter_leaves, to_yaml
        from ippo_cli.compose.resume import config_changes
        from ippo_cli.config.text import truncate_text
        from ippo_cli.runs.folder import START_LOCK, lock_folder, print_warning, write_start_files
        from ippo_cli.runs.input_files import changed_input_warnings, record_inputs
        from ippo_cli.runs.output import print_text

        if self.resumed:
            self.lock.enter_context(lock_folder(folder, name=START_LOCK))
            for change in config_changes(folder, dict(iter_leaves(self.plain))):
                print_text(truncate_text(" ".join(change.splitlines())))
            for line in changed_input_warnings(folder, self.inputs):
                print_warning(line)
        write_start_files(folder, to_yaml(self.plain), self.overrides, self.command, resumed=self.resumed)
        record_inputs(folder, self.inputs, resumed=self.resumed)
        print_text(_start_line(self.config, folder, self.ranks))


def _run(start: _RunStart, folder: Path | None, *, is_external: bool) -> Path | None:
    """Train in this process or in child ranks. `is_external`: this process is one rank of an external launcher."""
    from ippo_cli.runs.folder import reserve_folder
    from ippo_cli.runs.launch import run_ranks

    config = start.config
    if is_external:
        from ippo_cli.training.process import run_training

        return run_training(config, folder, resumed=start.resumed, start=start.write)
    if folder is None:
        folder = reserve_folder(Path(config.output_dir) / config.name)
    start.write(folder)
    if config.launch.processes > 1:
        run_ranks(folder, config.launch.processes, resumed=start.resumed)
        return folder
    from ippo_cli.training.process import run_training

    return run_training(config, folder, resumed=start.resumed)


def _start_line(config: Config, folder: Path, processes: int) -> str:
    from ippo_cli.config.schema import TeamKind
    from ippo_cli.config.text import LINE_WIDTH, join_names, text_width

    parts = [
        f"{join_names(list(config.task.agents))} on task={config.task.kind}",
        f"objective={config.algorithm.objective}",
        _critic_label(config),
        *([] if config.team.kind is TeamKind.independent else [f"team={config.team.kind.value}"]),
        f"{processes} process{'es' if processes > 1 else ''}",
    ]
    from ippo_cli.runs.folder import display_path

    line, target = f"ippo: {', '.join(parts)}", f"-> {display_path(folder)}"
    # A long path gets its own line, so that it can be copied.
    return f"{line} {target}" if text_width(f"{line} {target}") <= LINE_WIDTH else f"{line}\n  {target}"


def _critic_label(config: Config) -> str:
    """The common critic of all agents, or the critic of each agent."""
    kinds = {name: agent.critic.kind.value for name, agent in config.task.agents.items()}
    if len(set(kinds.values())) == 1:
        return f"critic={next(iter(kinds.values()))}"
    return "critics " + " ".join(f"{name}={kind}" for name, kind in kinds.items())
