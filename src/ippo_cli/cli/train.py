"""`ippo-train`: compose the configuration, check it, and train."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import TRAIN_HELP
from ippo_cli.runs.output import print_data, print_text

if TYPE_CHECKING:
    from omegaconf import DictConfig

COMPLETION_FLAGS = {"-sc", "--shell-completion"}


def main() -> NoReturn:
    """Entry point."""
    run_command("ippo-train", TRAIN_HELP, _dispatch_command)


def _dispatch_command(typed: Sequence[str]) -> None:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing the error and exiting with code 1
    from ippo_cli.cli.diff import find_difference
    from ippo_cli.cli.info import INFO_FLAGS, show_info
    from ippo_cli.cli.new_task import write_task_file
    from ippo_cli.compose.arguments import normalize_arguments
    from ippo_cli.compose.flags import check_flags
    from ippo_cli.compose.known_keys import check_known_keys
    from ippo_cli.compose.load import register_options
    from ippo_cli.compose.mistakes import find_saved_overrides
    from ippo_cli.compose.resume import resolve_resume
    from ippo_cli.compose.typed_kinds import check_typed_kinds
    from ippo_cli.compose.user_files import check_user_files
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.sweeps.multirun import is_sweep, run_sweep

    if (task_message := write_task_file(typed)) is not None:
        print_text(task_message, end="")
        return
    if (difference := find_difference(typed)) is not None:
        print_text(difference, end="")
        return
    check_flags(typed)
    argv = normalize_arguments(typed)
    if INFO_FLAGS & set(argv):
        print_text(show_info(argv), end="")
        return
    for text in argv:
        if text.startswith("="):  # Hydra has no check for this
            raise ConfigError(repr(text), "is an unexpected argument", "write key=value; see ippo-train --help")
    if not COMPLETION_FLAGS & set(argv):  # their arguments are Hydra's
        check_known_keys(argv)
    register_options()
    check_user_files(argv)
    if not COMPLETION_FLAGS & set(argv):
        check_typed_kinds(argv, find_saved_overrides(argv))
    config_text = _job_config_text(argv)
    if config_text is not None:
        print_data(config_text)
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
    from ippo_cli.compose.load import check_agents, config_dir

    sys.argv = [sys.argv[0], *argv]
    failures: list[BaseException] = []

    @hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")
    def job(node: DictConfig) -> None:
        try:
            check_agents(node, argv)
            train(node, folder, typed)
        except Exception as error:  # raised below: Hydra would print its own message
            failures.append(error)

    if COMPLETION_FLAGS & set(argv):
        completions = io.StringIO()
        with redirect_stdout(completions):
            job()
        print_data(filter_completions(completions.getvalue()))
        return
    job()
    if failures:
        raise failures[0]


def train(node: DictConfig, folder: Path | None, arguments: Sequence[str]) -> None:
    """Start a run, or resume `folder`, with the overrides of Hydra. `arguments`: the original ones."""
    from hydra.core.hydra_config import HydraConfig

    from ippo_cli.cli.start_training import start_training
    from ippo_cli.compose.arguments import LAUNCHER_FLAGS
    from ippo_cli.compose.searchpath import SEARCH_PATH

    parts = HydraConfig.get().overrides
    folders = [text for text in parts.hydra if text.startswith(SEARCH_PATH)]
    command = ["ippo-train", *(text for text in arguments if not text.startswith(LAUNCHER_FLAGS))]
    start_training(node, [*folders, *parts.task], folder, arguments, command=command)


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
