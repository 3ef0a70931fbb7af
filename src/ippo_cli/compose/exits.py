"""Command exit: error reports in one block, and exit codes."""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import NoReturn

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from ippo_cli.config.errors import (
    BROKEN_PIPE,
    INTERRUPTED,
    UNEXPECTED,
    ConfigError,
    IppoError,
    StorageError,
    is_disk_full,
    storage_error_message,
)
from ippo_cli.config.escape import escape_text
from ippo_cli.config.secrets import redact_text
from ippo_cli.runs.output import OutputClosed, flush_output, print_text

MAX_LINES = 12
WIDTH = 100
MAX_PATH_LENGTH = 4096  # PATH_MAX of Linux
SHELL_WORD = r"""(?:\$'(?:\\.|[^'\\])*'|'[^']*'|"[^"]*"|[^\s'"$;,])+"""
COMMAND = re.compile(rf"ippo-\w+(?: -m| (?=\S*=){SHELL_WORD})+|python -c '[^']*'")
NO_BREAK = "\ue000"  # replaces spaces inside commands; unprintable, so messages never contain it


def run_guarded(command: Callable[[], None], argv: Sequence[str], command_keys: Collection[str] | None = None) -> int:
    """Run a command and return its exit code; reports every expected failure in one block.

    `command_keys`: keys of the command in addition to a run's; None for a command without overrides.
    """
    set_library_defaults()
    try:
        code = _run(command, argv, command_keys)
        flush_output()
    except OutputClosed:
        return BROKEN_PIPE
    return code


def set_library_defaults() -> None:
    """Set environment variables that libraries read when they are imported, unless the user has set them."""
    # Spinning threads delay every operation when other processes use the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Use transparent huge pages (2 MiB) for large tensors.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # silence the profiler's messages
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no C++ stack traces of lost connections


def _run(command: Callable[[], None], argv: Sequence[str], own: Collection[str] | None) -> int:
    try:
        command()
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        return _report_mistakes(error, argv, own)
    except IppoError as error:
        return _report_error(error)
    except KeyboardInterrupt as error:
        if not _is_reported(error):
            print_text(
                format_block(_append_notes(f"interrupted{'; ' + str(error) if str(error) else ''}", error)),
                to_stderr=True,
            )
        return INTERRUPTED
    except SystemExit as leaving:  # raised by Hydra and argparse
        return leaving.code if isinstance(leaving.code, int) else (0 if leaving.code is None else 2)
    except Exception as error:
        if is_disk_full(error):
            return _report_error(StorageError(f"a file cannot be written ({storage_error_message(error)})"))
        print_text(redact_text(traceback.format_exc()), end="", to_stderr=True)
        return UNEXPECTED
    return 0


def _report_mistakes(error: Exception, argv: Sequence[str], own: Collection[str] | None) -> int:
    """Report all mistakes of the command line after one of them raised `error`."""
    if _is_reported(error):
        return error.exit_code if isinstance(error, ConfigError) else 2
    from ippo_cli.compose.mistakes import find_mistakes

    errors = find_mistakes(error, argv, own)
    if not errors:
        print_text(format_block(indent_lines(str(error))), to_stderr=True)
        return 2
    messages = [_append_notes(f"{mistake}{_error_location(mistake, argv)}", mistake) for mistake in errors]
    print_text(
        format_block(f"ippo: {messages[0]}") if len(messages) == 1 else format_list_block(messages),
        to_stderr=True,
    )
    return errors[0].exit_code


def exit_process(code: int) -> NoReturn:
    """Exit the process with this code.

    Skips the interpreter's shutdown if a process group was used: its threads may access the interpreter during
    shutdown, which ends a finished run with SIGABRT.
    """
    distributed = sys.modules.get("ippo_cli.engine.distributed")
    if distributed is None or not distributed.was_initialized():
        sys.exit(code)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the exit code must not change any more
    atexit._run_exitfuncs()
    with suppress(OutputClosed):
        flush_output()
    os._exit(code)


def format_block(message: str) -> str:
    """Wrap a message to at most `MAX_LINES` lines; escapes control characters, as it may quote model output."""
    source_lines = redact_text(message)[: 2 * MAX_LINES * WIDTH].replace("\t", " ").splitlines()
    lines = [part for line in map(escape_text, source_lines) for part in _wrap_line(line) or [""]]
    return "\n".join(lines[:MAX_LINES])


def format_list_block(messages: Sequence[str]) -> str:
    """Format several messages in at most `MAX_LINES` lines: truncates the longest and counts those that do not fit."""
    room = MAX_LINES - 1
    visible = list(messages) if len(messages) <= room else messages[: room - 1]
    parts = [format_block(message).splitlines() for message in visible]
    left = room - (len(messages) > len(visible))
    while sum(map(len, parts)) > left:
        longest = max(parts, key=len)
        del longest[-1]
        longest[-1] = longest[-1][: WIDTH - 4] + " ..."
    lines = [f"{'- ' if first else '  '}{line}" for part in parts for first, line in _mark_first_line(part)]
    more = [f"- and {len(messages) - len(visible)} more"] if len(messages) > len(visible) else []
    return "\n".join([f"ippo: {len(messages)} mistakes", *lines, *more])


def _mark_first_line(lines: Sequence[str]) -> list[tuple[bool, str]]:
    return [(place == 0, line) for place, line in enumerate(lines)]


def _wrap_line(line: str) -> list[str]:
    """Wrap a line; commands and paths are not broken, so that they can be copied."""
    whole = COMMAND.sub(lambda command: command[0].replace(" ", NO_BREAK), line)
    parts: list[str] = []
    for part in textwrap.wrap(whole, WIDTH - 2, break_on_hyphens=False, break_long_words=False):
        is_copyable = NO_BREAK in part or ("/" in part and len(part) < MAX_PATH_LENGTH)
        parts += [part] if is_copyable else textwrap.wrap(part, WIDTH - 2, break_on_hyphens=False)
    return [part.replace(NO_BREAK, " ") for part in parts]


def _error_location(error: ConfigError, argv: Sequence[str]) -> str:
    """Format file and line of a user file that sets the wrong key; empty if there is none."""
    from ippo_cli.compose.arguments import normalize_arguments
    from ippo_cli.compose.user_files import find_key_location

    try:
        place = find_key_location(error.key, normalize_arguments(argv))
    except Exception:  # invalid arguments are the error itself
        return ""
    return f" ({place})" if place else ""


def _append_notes(message: str, error: BaseException) -> str:
    return "\n".join(map(indent_lines, [message, *getattr(error, "__notes__", ())]))


def indent_lines(message: str) -> str:
    """Indent all lines but the first, so that text of others in a message cannot pass for a message."""
    first, *others = message.splitlines() or [""]
    return "\n".join([first, *(line if line.startswith("  ") else f"  {line}" for line in others)])


def _report_error(error: IppoError, place: str = "") -> int:
    if not _is_reported(error):
        print_text(format_block(_append_notes(f"ippo: {error}{place}", error)), to_stderr=True)
    return error.exit_code


def _is_reported(error: BaseException) -> bool:
    """Whether another rank reports the error; before ranks connect, only local rank 0 reports."""
    distributed = sys.modules.get("ippo_cli.engine.distributed")
    if distributed is None or not distributed.was_initialized():
        return os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) != "0"
    return getattr(error, "reported", False)
