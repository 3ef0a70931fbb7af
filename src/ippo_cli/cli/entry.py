"""Entry point shared by all commands: prints help and version without heavy imports, runs the command, exits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from ippo_cli import __version__
from ippo_cli.cli.help import (
    EXPLAIN_FLAG,
    explain_topic,
    has_help_flag,
    has_version_flag,
    help_topic,
    unknown_topic_message,
)
from ippo_cli.config.commands import name_positional_run, repeated_keys
from ippo_cli.config.errors import BROKEN_PIPE
from ippo_cli.config.secrets import redact_text
from ippo_cli.runs.garbage_collection import relax_gc
from ippo_cli.runs.output import (
    OutputClosed,
    detect_closed_output,
    flush_output,
    open_closed_streams,
    print_status,
    print_text,
)

SEVERAL_KEYS = ("hydra.searchpath", "experiment", "+experiment")  # all count, or more than one is an error
COMPLETION_FLAGS = ("--completion", "--complete")


def run_command(
    name: str,
    help_text: str,
    command: Callable[[list[str]], None],
    *,
    needs_arguments: bool = False,
    command_keys: Collection[str] = (),
    takes_overrides: bool = True,
    several_keys: Collection[str] = SEVERAL_KEYS,
) -> NoReturn:
    """Run a command on `sys.argv` and exit with a code of `config/errors.py`.

    `command_keys`: keys that only this command has; with `run` among them, a folder without a key is the run.
    `several_keys`: keys that may be given several times.
    `takes_overrides`: the command also accepts keys of a run. `needs_arguments`: print the help without arguments.
    """
    argv = name_positional_run(sys.argv[1:]) if "run" in command_keys else sys.argv[1:]
    open_closed_streams()
    detect_closed_output()
    if any(text.startswith(COMPLETION_FLAGS) for text in argv[:2]):
        from ippo_cli.cli.completion import answer_completion

        if (text := answer_completion(argv)) is not None:
            _print_and_exit(text)
    if has_help_flag(argv) or (needs_arguments and not argv):
        _show_help(help_text, argv, command_keys, own_help="" if takes_overrides else name)
    if has_version_flag(argv):
        _print_and_exit(f"{name} {__version__}\n")
    if not {"--cfg", "-c", "-sc", "--shell-completion", "--diff"} & {*argv}:
        print_status("ippo: reading the configuration", terminal_only=True)
    for line in repeated_keys(argv, several=several_keys):
        print_status(redact_text(line))
    relax_gc()
    from ippo_cli.compose.exits import exit_process, run_guarded  # imports Hydra, which --help does not need

    exit_process(run_guarded(lambda: command(argv), argv, command_keys if takes_overrides else None))


def _print_and_exit(text: str) -> NoReturn:
    try:
        print_text(text, end="")
        flush_output()
    except OutputClosed:
        sys.exit(BROKEN_PIPE)
    sys.exit(0)


def _show_help(help_text: str, argv: Sequence[str], command_keys: Collection[str], *, own_help: str) -> NoReturn:
    """Print the help of the command, or of one group or key, and exit. `own_help`: as in `unknown_topic_message`."""
    topic = help_topic(argv)
    text = (
        help_text
        if topic is None and EXPLAIN_FLAG not in argv
        else explain_topic(topic or "", help_text, tuple(command_keys))
    )
    if text is None:
        print_text(unknown_topic_message(topic or "", argv, tuple(command_keys), own_help), to_stderr=True)
        sys.exit(2)
    _print_and_exit(text)
