"""`ippo_cli.train`: what `ippo-train` does, from Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ippo_cli.api.overrides import Overrides, to_overrides
from ippo_cli.config.errors import ConfigError, combine_errors

if TYPE_CHECKING:
    from ippo_cli.api.run import Run


def train(*overrides: Overrides, **keys: Any) -> Run:
    """Train, as `ippo-train` with these overrides does, and return the run.

    `overrides`: texts `"key=value"`, lists of them, or mappings of keys to values; `keys`: further ones. With
    `launch.processes` above 1, child processes train; otherwise this process does, and has to be in its main thread.
    `resume=` continues a run. Raises the exceptions of `ippo_cli.config.errors`: `ConfigError` before anything is
    loaded, `Preempted` after a signal, once the run is saved.

    >>> run = train("task=sorting_solo", {"actor": {"hidden_size": 32}}, num_iterations=1)  # doctest: +SKIP
    >>> run.status  # doctest: +SKIP
    'done'
    """
    from ippo_cli.api.run import Run

    typed = to_overrides(overrides, keys)
    with convert_hydra_errors(typed), keep_streams():
        folder = _start(typed)
    return Run(folder)


def _start(typed: Sequence[str]) -> Path:
    from ippo_cli.cli.start_training import start_training
    from ippo_cli.compose.arguments import normalize_arguments
    from ippo_cli.compose.exits import set_library_defaults
    from ippo_cli.compose.load import compose_node, register_options
    from ippo_cli.compose.mistakes import find_saved_overrides
    from ippo_cli.compose.resume import resolve_resume
    from ippo_cli.compose.typed_kinds import check_typed_kinds
    from ippo_cli.compose.user_files import check_user_files

    set_library_defaults()
    register_options()
    argv = normalize_arguments(typed)
    check_user_files(argv)
    check_typed_kinds(argv, find_saved_overrides(argv))
    argv, resumed = resolve_resume(argv)
    command = ["ippo-train", *typed]
    folder = start_training(compose_node(argv), argv, resumed, typed, command=command)
    if folder is None:
        raise ConfigError("mode=plan or mode=pilot", "trains nothing", "use ippo-train for it, or mode=train")
    return folder


@contextmanager
def convert_hydra_errors(typed: Sequence[str], command_keys: Sequence[str] = ()) -> Iterator[None]:
    """Raise `ConfigError` with all mistakes of the overrides, as the commands report them.

    `command_keys`: keys of the command that are not keys of a run.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        from ippo_cli.compose.mistakes import find_mistakes

        found = find_mistakes(error, typed, command_keys)
        if not found:
            raise
        raise combine_errors(found) from None  # Hydra's message names an internal file


@contextmanager
def keep_streams() -> Iterator[None]:
    """Restore the standard streams, which a command replaces so that it notices a closed output."""
    streams = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = streams
