"""`ippo-train`: compose the configuration, check it, and train."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import TRAIN_HELP

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ippo_cli.config.schema import Config


def main() -> NoReturn:
    """Entry point."""
    run_command("ippo-train", TRAIN_HELP, _dispatch_command)


def _dispatch_command(typed: Sequence[str]) -> None:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing the error and exiting with code 1
    from ippo_cli.cli.info import INFO_FLAGS, show_info
    from ippo_cli.cli.new_task import write_task_file
    from ippo_cli.compose.arguments import normalize_arguments
    from ippo_cli.compose.flags import check_flags
    from ippo_cli.compose.load import register_schemas
    from ippo_cli.compose.resume import resolve_resume
    from ippo_cli.compose.user_files import check_user_files
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.sweeps.multirun import is_sweep, run_sweep

    if (task_message := write_task_file(typed)) is not None:
        print(task_message, end="")
        return
    check_flags(typed)
    argv = normalize_arguments(typed)
    if INFO_FLAGS & set(argv):
        print(show_info(argv), end="")
        return
    for text in argv:
        if text.startswith("="):  # Hydra has no check for this
            raise ConfigError(repr(text), "is an unexpected argument", "write key=value; see ippo-train --help")
    register_schemas()
    check_user_files(argv)
    config_text = _job_config_text(argv)
    if config_text is not None:
        print(config_text, end="")
        return
    if is_sweep(argv):
        run_sweep(argv)
        return
    argv, folder = resolve_resume(argv)
    if folder is not None:
        check_user_files(argv)
    _run_job(argv, folder, typed)


def _run_job(argv: Sequence[str], folder: Path | None, typed: Sequence[str]) -> None:
    """Start one run through Hydra, which reads its overrides from `sys.argv`.

    `folder`: the run to resume, or None. `typed`: the original arguments, for ranks on several machines.
    """
    import hydra

    from ippo_cli.compose.diagnose import filter_completions
    from ippo_cli.compose.load import config_dir

    sys.argv = [sys.argv[0], *argv]
    failures: list[BaseException] = []

    @hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")
    def job(node: DictConfig) -> None:
        try:
            train(node, folder, typed)
        except Exception as error:  # raised below: Hydra would print its own message
            failures.append(error)

    if any(flag in argv for flag in ("-sc", "--shell-completion")):
        completions = io.StringIO()
        with redirect_stdout(completions):
            job()
        print(filter_completions(completions.getvalue()), end="")
        return
    job()
    if failures:
        raise failures[0]


def train(node: DictConfig, folder: Path | None, arguments: Sequence[str]) -> None:
    """Check the configuration, then train: in this process, in child ranks, or as one rank of an external launcher.

    `folder`: the run to resume; None starts a new run. `arguments`: passed to every rank of a run on several machines.
    """
    from hydra.core.hydra_config import HydraConfig

    from ippo_cli.compose.hub_names import check_hub_access
    from ippo_cli.compose.load import build_config, build_sweep_config, iter_leaves, resolve_config, to_yaml
    from ippo_cli.compose.resume import config_changes
    from ippo_cli.compose.searchpath import SEARCH_PATH
    from ippo_cli.config.checks import check_config
    from ippo_cli.config.hardware import world_size
    from ippo_cli.config.model_hub import download_models
    from ippo_cli.config.schema import Mode
    from ippo_cli.config.sweeps import check_multirun_flag
    from ippo_cli.config.text import truncate_text
    from ippo_cli.engine.launchers import detect_ranks, external_world_size, unused_world_size_warning
    from ippo_cli.runs.faults import arm_faults, fault_point
    from ippo_cli.runs.folder import (
        START_LOCK,
        check_iterations_left,
        check_metrics,
        check_world_size,
        list_checkpoints,
        lock_folder,
        print_warning,
        reserve_folder,
        write_start_files,
    )
    from ippo_cli.runs.input_files import changed_input_warnings, input_files, record_inputs
    from ippo_cli.runs.launch import run_node_ranks, run_ranks
    from ippo_cli.runs.output import ignore_closed_output, print_status

    hydra = HydraConfig.get()
    folders = [text for text in hydra.overrides.hydra if text.startswith(SEARCH_PATH)]
    overrides = [*folders, *(text for text in hydra.overrides.task if not text.startswith("resume="))]
    check_multirun_flag(build_sweep_config(node))
    plain = resolve_config(node)
    config = build_config(plain)
    external_ranks = external_world_size()
    check_config(config, world_size(config, external_ranks))
    arm_faults(config.debug_faults, detect_ranks(os.environ).rank)
    fault_point("compose")
    check_hub_access(config)
    config = download_models(config)
    if (unused := unused_world_size_warning(os.environ, world_size(config, external_ranks))) is not None:
        print_warning(unused)
    if config.mode is Mode.plan or folder is None:
        print_status("ippo-train: the configuration is valid; loading libraries and data")
    if config.mode is Mode.plan:
        from ippo_cli.planning.plan import show_plan

        show_plan(config)
        return
    ignore_closed_output()
    if external_ranks is None and config.launch.nodes > 1:
        run_node_ranks(arguments, config.launch.processes, config.launch.nodes)
        return
    resumed = folder is not None
    if not resumed:
        from ippo_cli.planning.trial import check_trainable

        check_trainable(config, external_ranks or config.launch.processes)

    held = ExitStack()
    inputs = input_files(config)

    def start_run(where: Path) -> None:
        if resumed:
            held.enter_context(lock_folder(where, name=START_LOCK))
        for change in config_changes(where, dict(iter_leaves(plain))) if resumed else ():
            print(truncate_text(" ".join(change.splitlines())), flush=True)
        for line in changed_input_warnings(where, inputs) if resumed else ():
            print_warning(line)
        write_start_files(where, to_yaml(plain), overrides, sys.argv, resumed=resumed)
        record_inputs(where, inputs, resumed=resumed)
        print(_start_line(config, where, external_ranks or config.launch.processes), flush=True)

    if folder is not None:
        newest = list_checkpoints(folder / "checkpoints")[-1]
        ends = [number for number in (config.max_iterations_this_run, config.num_iterations) if number is not None]
        check_iterations_left(newest, config, min(ends, default=sys.maxsize))
        check_metrics(newest)
        if not config.checkpoint.reshard:
            check_world_size(newest, external_ranks or config.launch.processes)
    with held:
        if external_ranks is not None:
            from ippo_cli.training.process import run_training

            run_training(config, folder, resumed=resumed, start=start_run)
            return
        if folder is None:
            folder = reserve_folder(Path(config.output_dir) / config.name)
        start_run(folder)
        if config.launch.processes > 1:
            run_ranks(folder, config.launch.processes, resumed=resumed)
            return
        from ippo_cli.training.process import run_training

        run_training(config, folder, resumed=resumed)


def _start_line(config: Config, folder: Path, processes: int) -> str:
    from ippo_cli.config.schema import TeamKind
    from ippo_cli.config.text import LINE_WIDTH, join_names, text_width

    parts = [
        f"{join_names(list(config.task.agents))} on task={config.task.kind}",
        f"objective={config.algorithm.objective.value}",
        _critic_label(config),
        *([] if config.team.kind is TeamKind.independent else [f"team={config.team.kind.value}"]),
        f"{processes} process{'es' if processes > 1 else ''}",
    ]
    from ippo_cli.runs.folder import display_path

    line, target = f"ippo-train: {', '.join(parts)}", f"-> {display_path(folder)}"
    # A long path gets its own line, so that it can be copied.
    return f"{line} {target}" if text_width(f"{line} {target}") <= LINE_WIDTH else f"{line}\n  {target}"


def _critic_label(config: Config) -> str:
    """The common critic of all agents, or the critic of each agent."""
    kinds = {name: agent.critic.kind.value for name, agent in config.task.agents.items()}
    if len(set(kinds.values())) == 1:
        return f"critic={next(iter(kinds.values()))}"
    return "critics " + " ".join(f"{name}={kind}" for name, kind in kinds.items())


def _job_config_text(argv: Sequence[str]) -> str | None:
    """The text of `--cfg job`: the composed configuration without agent keys that are not overridden. Else None."""
    from hydra._internal.utils import get_args_parser

    from ippo_cli.compose.load import compose_node, format_composition
    from ippo_cli.compose.resume import saved_overrides
    from ippo_cli.config.commands import last_value, parse_path

    arguments = get_args_parser().parse_args(list(argv))
    if arguments.cfg != "job" or arguments.package:
        return None
    overrides = [text for text in arguments.overrides if not text.startswith("resume=")]
    if arguments.multirun:
        return _sweep_config_text(overrides, resolve=arguments.resolve)
    if (wanted := last_value(arguments.overrides, "resume")) not in (None, "never", "auto", "must"):
        overrides = [*saved_overrides(parse_path(wanted)), *overrides]
    return format_composition(compose_node(overrides), resolve=arguments.resolve)


def _sweep_config_text(overrides: Sequence[str], *, resolve: bool) -> str:
    """One YAML document per job of a grid, each after a comment with the overrides that differ between jobs."""
    from ippo_cli.compose.diagnose import config_groups
    from ippo_cli.compose.load import compose_node, format_composition
    from ippo_cli.compose.searchpath import SEARCH_PATH
    from ippo_cli.sweeps.grid import expand_grid

    swept = [text for text in overrides if not text.lstrip("+~").startswith(("hydra/", "hydra.", "sweep=", "sweep."))]
    of_paths = [text for text in overrides if text.startswith(SEARCH_PATH)]
    jobs = expand_grid(swept, lambda group: config_groups(of_paths).get(group, []))
    shared = {text for text in jobs[0] if all(text in job for job in jobs)} if len(jobs) > 1 else set()
    documents = []
    for number, job in enumerate(jobs, start=1):
        own = " ".join(text for text in job if text not in shared)
        config = format_composition(compose_node([*of_paths, *job]), resolve=resolve)
        documents.append(f"# job {number} of {len(jobs)}: {own}\n{config}")
    return "---\n".join(documents)


if __name__ == "__main__":
    main()
