"""What every command begins and ends with: help and version at once, then its own work, then an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import NoReturn

from ippo_cli import __version__
from ippo_cli.cli.help import asks_for_help, asks_for_version, explain_topic, help_topic, unknown_topic
from ippo_cli.config.errors import READER_GONE
from ippo_cli.runs.garbage_collection import collect_seldom
from ippo_cli.runs.output import ReaderGone, announce, flush_output, open_closed_streams, watch_readers


def run_command(
    name: str,
    help_text: str,
    command: Callable[[list[str]], None],
    *,
    needs_arguments: bool = False,
    own: Collection[str] = (),
    takes_overrides: bool = True,
) -> NoReturn:
    """Run a command on what was typed; exit codes are in `config/errors.py`.

    `own`: keys of the command beside those of a run, which one that `takes_overrides` has as well. One that
    `needs_arguments` shows its help without any.
    """
    argv = sys.argv[1:]
    open_closed_streams()
    watch_readers()
    if asks_for_help(argv) or (needs_arguments and not argv):
        _show_help(help_text, help_topic(argv))
    if asks_for_version(argv):
        _answer(f"{name} {__version__}\n")
    if not {"--cfg", "-c", "-sc", "--shell-completion"} & {*argv}:
        announce(f"{name}: reading the configuration", terminal_only=True)
    collect_seldom()
    from ippo_cli.compose.exits import guarded, leave  # imports Hydra, which help does not wait for

    leave(guarded(lambda: command(argv), argv, own if takes_overrides else None))


def _answer(text: str) -> NoReturn:
    try:
        print(text, end="")
        flush_output()
    except ReaderGone:
        sys.exit(READER_GONE)
    sys.exit(0)


def _show_help(help_text: str, topic: str | None) -> NoReturn:
    """The command's help, or that of one group or key."""
    text = help_text if topic is None else explain_topic(topic)
    if text is None:
        print(unknown_topic(str(topic)), file=sys.stderr)
        sys.exit(2)
    _answer(text)
