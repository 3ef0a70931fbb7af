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
    run_command("ippo-train", TRAIN_HELP, _with_hydra)


def _with_hydra(typed: Sequence[str]) -> None:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and leaving with exit code 1
    from ippo_cli.cli.info import INFO_FLAGS, show_info
    from ippo_cli.cli.new_task import new_task
    from ippo_cli.compose.arguments import arguments
    from ippo_cli.compose.flags import check_flags
    from ippo_cli.compose.load import register_schemas
    from ippo_cli.compose.resume import continued
    from ippo_cli.compose.user_files import check_own_files
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.sweeps.multirun import is_sweep, sweep

    if (said := new_task(typed)) is not None:
        print(said, end="")
        return
    check_flags(typed)
    argv = arguments(typed)
    if INFO_FLAGS & set(argv):
        print(show_info(argv), end="")
        return
    for text in argv:
        if text.startswith("="):  # not even Hydra's own checks expect this
            raise ConfigError(repr(text), "is an unexpected argument", "write key=value; see ippo-train --help")
    register_schemas()
    check_own_files(argv)
    shown = _asked_for_job_config(argv)
    if shown is not None:
        print(shown, end="")
        return
    if is_sweep(argv):
        sweep(argv)
        return
    argv, folder = continued(argv)
    if folder is not None:
        check_own_files(argv)
    _run_job(argv, folder, typed)


def _run_job(argv: Sequence[str], folder: Path | None, typed: Sequence[str]) -> None:
    """One run through Hydra, which takes its overrides from `sys.argv`; `folder`: the run to resume; `typed`: what was
    typed, for the ranks of several machines."""
    import hydra

    from ippo_cli.compose.diagnose import offered
    from ippo_cli.compose.load import config_dir

    sys.argv = [sys.argv[0], *argv]
    failures: list[BaseException] = []

    @hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")
    def job(node: DictConfig) -> None:
        try:
            train(node, folder, typed)
        except Exception as error:  # raised below: Hydra would print it in its own words
            failures.append(error)

    if any(flag in argv for flag in ("-sc", "--shell-completion")):
        said = io.StringIO()
        with redirect_stdout(said):
            job()
        print(offered(said.getvalue()), end="")
        return
    job()
    if failures:
        raise failures[0]


def train(node: DictConfig, folder: Path | None, arguments: Sequence[str]) -> None:
    """One run: check the composition, then train in this process, in ranks of its own, or as one of outside ranks.

    `folder` is the run to resume; None starts a new one. `arguments` are what every rank of several machines is given.
    """
    from hydra.core.hydra_config import HydraConfig

    from ippo_cli.compose.hub_names import settle_hub
    from ippo_cli.compose.load import leaves, resolve, to_yaml, typed, typed_sweep
    from ippo_cli.compose.resume import changes
    from ippo_cli.compose.searchpath import SEARCH_PATH
    from ippo_cli.config.checks import check
    from ippo_cli.config.hardware import world_size
    from ippo_cli.config.model_hub import download_models
    from ippo_cli.config.schema import Mode
    from ippo_cli.config.sweeps import refuse_alone
    from ippo_cli.config.text import cut
    from ippo_cli.engine.launchers import external_world_size, ranks_from, unused_world_size
    from ippo_cli.runs.faults import arm, fault_point
    from ippo_cli.runs.folder import (
        START_LOCK,
        all_checkpoints,
        check_metrics,
        lock,
        refuse_fewer_iterations,
        refuse_other_world_size,
        reserve_folder,
        start_files,
        warn,
    )
    from ippo_cli.runs.input_files import changed_inputs, input_files, record_inputs
    from ippo_cli.runs.launch import run_node, run_ranks
    from ippo_cli.runs.output import announce, outlive_readers

    hydra = HydraConfig.get()
    folders = [text for text in hydra.overrides.hydra if text.startswith(SEARCH_PATH)]
    overrides = [*folders, *(text for text in hydra.overrides.task if not text.startswith("resume="))]
    refuse_alone(typed_sweep(node))
    plain = resolve(node)
    config = typed(plain)
    outside = external_world_size()
    check(config, world_size(config, outside))
    arm(config.debug_faults, ranks_from(os.environ).rank)
    fault_point("compose")
    settle_hub(config)
    config = download_models(config)
    if (unused := unused_world_size(os.environ, world_size(config, outside))) is not None:
        warn(unused)
    if config.mode is Mode.plan or folder is None:
        announce("ippo-train: the configuration is valid; loading libraries and data")
    if config.mode is Mode.plan:
        from ippo_cli.planning.plan import show_plan

        show_plan(config)
        return
    outlive_readers()
    if outside is None and config.launch.nodes > 1:
        run_node(arguments, config.launch.processes, config.launch.nodes)
        return
    resumed = folder is not None
    if not resumed:
        from ippo_cli.planning.trial import refuse_untrainable

        refuse_untrainable(config, outside or config.launch.processes)

    held = ExitStack()
    inputs = input_files(config)

    def start(where: Path) -> None:
        if resumed:
            held.enter_context(lock(where, name=START_LOCK))
        for change in changes(where, dict(leaves(plain))) if resumed else ():
            print(cut(" ".join(change.splitlines())), flush=True)
        for line in changed_inputs(where, inputs) if resumed else ():
            warn(line)
        start_files(where, to_yaml(plain), overrides, sys.argv, resumed=resumed)
        record_inputs(where, inputs, resumed=resumed)
        print(_first_line(config, where, outside or config.launch.processes), flush=True)

    if folder is not None:
        newest = all_checkpoints(folder / "checkpoints")[-1]
        ends = [number for number in (config.stop_after, config.num_iterations) if number is not None]
        refuse_fewer_iterations(newest, config, min(ends, default=sys.maxsize))
        check_metrics(newest)
        if not config.checkpoint.reshard:
            refuse_other_world_size(newest, outside or config.launch.processes)
    with held:
        if outside is not None:
            from ippo_cli.training.process import run_training

            run_training(config, folder, resumed=resumed, start=start)
            return
        if folder is None:
            folder = reserve_folder(Path(config.output_dir) / config.name)
        start(folder)
        if config.launch.processes > 1:
            run_ranks(folder, config.launch.processes, resumed=resumed)
            return
        from ippo_cli.training.process import run_training

        run_training(config, folder, resumed=resumed)


def _first_line(config: Config, folder: Path, processes: int) -> str:
    from ippo_cli.config.schema import TeamKind
    from ippo_cli.config.text import LINE_WIDTH, listed, text_width

    parts = [
        f"{listed(list(config.task.agents))} on task={config.task.kind.value}",
        f"objective={config.algorithm.objective.value}",
        _critics(config),
        *([] if config.team.kind is TeamKind.independent else [f"team={config.team.kind.value}"]),
        f"{processes} process{'es' if processes > 1 else ''}",
    ]
    from ippo_cli.runs.folder import from_here

    line, target = f"ippo-train: {', '.join(parts)}", f"-> {from_here(folder)}"
    # A path is there to be copied: a long one has a line of its own.
    return f"{line} {target}" if text_width(f"{line} {target}") <= LINE_WIDTH else f"{line}\n  {target}"


def _critics(config: Config) -> str:
    """Which critic the agents have, or each of them."""
    kinds = {name: agent.critic.kind.value for name, agent in config.task.agents.items()}
    if len(set(kinds.values())) == 1:
        return f"critic={next(iter(kinds.values()))}"
    return "critics " + " ".join(f"{name}={kind}" for name, kind in kinds.items())


def _asked_for_job_config(argv: Sequence[str]) -> str | None:
    """The text for `--cfg job`: the composition without the leaves that no agent overrides."""
    from hydra._internal.utils import get_args_parser

    from ippo_cli.compose.load import compose_node, shown
    from ippo_cli.compose.resume import saved_overrides
    from ippo_cli.config.commands import last_value, typed_path

    arguments = get_args_parser().parse_args(list(argv))
    if arguments.cfg != "job" or arguments.package:
        return None
    overrides = [text for text in arguments.overrides if not text.startswith("resume=")]
    if arguments.multirun:
        return _configs_of_jobs(overrides, resolve=arguments.resolve)
    if (wanted := last_value(arguments.overrides, "resume")) not in (None, "never", "auto", "must"):
        overrides = [*saved_overrides(typed_path(wanted)), *overrides]
    return shown(compose_node(overrides), resolve=arguments.resolve)


def _configs_of_jobs(overrides: Sequence[str], *, resolve: bool) -> str:
    """One YAML document for each job of a grid, after a line that names what it sweeps over."""
    from ippo_cli.compose.diagnose import groups
    from ippo_cli.compose.load import compose_node, shown
    from ippo_cli.compose.searchpath import SEARCH_PATH
    from ippo_cli.sweeps.grid import expanded

    swept = [text for text in overrides if not text.lstrip("+~").startswith(("hydra/", "hydra.", "sweep=", "sweep."))]
    of_paths = [text for text in overrides if text.startswith(SEARCH_PATH)]
    jobs = expanded(swept, lambda group: groups(of_paths).get(group, []))
    shared = {text for text in jobs[0] if all(text in job for job in jobs)} if len(jobs) > 1 else set()
    documents = []
    for number, job in enumerate(jobs, start=1):
        own = " ".join(text for text in job if text not in shared)
        config = shown(compose_node([*of_paths, *job]), resolve=resolve)
        documents.append(f"# job {number} of {len(jobs)}: {own}\n{config}")
    return "---\n".join(documents)


if __name__ == "__main__":
    main()
