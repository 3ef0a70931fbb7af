"""Ending a command: one block for errors that users can act on, and the exit code that scripts rely on."""

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
    INTERRUPTED,
    READER_GONE,
    UNEXPECTED,
    ConfigError,
    IppoError,
    StorageError,
    disk_is_full,
    storage_failure,
)
from ippo_cli.config.secrets import redacted
from ippo_cli.training.output import ReaderGone, flush_output

MAX_LINES = 12
WIDTH = 100
MAX_PATH_LENGTH = 4096  # PATH_MAX of Linux
WORD = r"""(?:\$'(?:\\.|[^'\\])*'|'[^']*'|"[^"]*"|[^\s'"$;,])+"""  # of a shell
COMMAND = re.compile(rf"ippo-\w+(?: -m| (?=\S*=){WORD})+|python -c '[^']*'")
NO_BREAK = "\ue000"  # stands for a space inside of a command; not printable, and so in no message


def guarded(command: Callable[[], None], argv: Sequence[str], own: Collection[str] | None = None) -> int:
    """Run a command and return its exit code; every expected failure is reported in one block.

    `own`: keys of the command beside those of a run; None for a command that takes no overrides.
    """
    # Threads that spin while they wait make every operation wait for a time slice when other processes want the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Large tensors come and go: in pages of 2 MiB rather than of 4 KiB, where the system offers them.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler announces itself otherwise
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost connection is twenty lines of C++ frames otherwise
    try:
        code = _run(command, argv, own)
        flush_output()
    except ReaderGone:
        return READER_GONE
    return code


def _run(command: Callable[[], None], argv: Sequence[str], own: Collection[str] | None) -> int:
    try:
        command()
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        return _report_mistakes(error, argv, own)
    except IppoError as error:
        return _tell(error)
    except KeyboardInterrupt as error:
        if not _told(error):
            print(block(_with_notes(f"interrupted{'; ' + str(error) if str(error) else ''}", error)), file=sys.stderr)
        return INTERRUPTED
    except SystemExit as leaving:  # Hydra and argparse leave this way
        return leaving.code if isinstance(leaving.code, int) else (0 if leaving.code is None else 2)
    except Exception as error:
        if disk_is_full(error):
            return _tell(StorageError(f"a file cannot be written ({storage_failure(error)})"))
        print(redacted(traceback.format_exc()), end="", file=sys.stderr)
        return UNEXPECTED
    return 0


def _report_mistakes(error: Exception, argv: Sequence[str], own: Collection[str] | None) -> int:
    """Report every mistake of the command line of which one made the command fail."""
    if _told(error):
        return error.exit_code if isinstance(error, ConfigError) else 2
    from ippo_cli.cli.mistakes import find_mistakes

    errors = find_mistakes(error, argv, own)
    if not errors:
        print(block(str(error)), file=sys.stderr)
        return 2
    shown = [_with_notes(f"{one}{_place(one, argv)}", one) for one in errors]
    print(block(f"ippo: {shown[0]}") if len(shown) == 1 else list_block(shown), file=sys.stderr, flush=True)
    return errors[0].exit_code


def leave(code: int) -> NoReturn:
    """End this process with that exit code.

    At once if a process group ran in it: its threads may want the interpreter while that shuts down, and are then
    ended in a way that turns a finished run into SIGABRT.
    """
    distributed = sys.modules.get("ippo_cli.engine.distributed")
    if distributed is None or not distributed.has_run():
        sys.exit(code)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # how it ended is known
    atexit._run_exitfuncs()
    with suppress(ReaderGone):
        flush_output()
    os._exit(code)


def block(message: str) -> str:
    """A message of at most `MAX_LINES` lines of a terminal's width; it may quote model text, so nothing in it acts."""
    shown = redacted(message)[: 2 * MAX_LINES * WIDTH].replace("\t", " ").splitlines()
    spelled = ["".join(c if c.isprintable() else repr(c)[1:-1] for c in line) for line in shown]
    lines = [part for line in spelled for part in _wrapped(line) or [""]]
    return "\n".join(lines[:MAX_LINES])


def list_block(messages: Sequence[str]) -> str:
    """Several messages in at most `MAX_LINES` lines: the longest are cut, and the last are counted."""
    room = MAX_LINES - 1
    shown = list(messages) if len(messages) <= room else messages[: room - 1]
    parts = [block(message).splitlines() for message in shown]
    left = room - (len(messages) > len(shown))
    while sum(map(len, parts)) > left:
        longest = max(parts, key=len)
        del longest[-1]
        longest[-1] = longest[-1][: WIDTH - 4] + " ..."
    lines = [f"{'- ' if first else '  '}{line}" for part in parts for first, line in _marked(part)]
    more = [f"- and {len(messages) - len(shown)} more"] if len(messages) > len(shown) else []
    return "\n".join([f"ippo: {len(messages)} mistakes", *lines, *more])


def _marked(lines: Sequence[str]) -> list[tuple[bool, str]]:
    return [(place == 0, line) for place, line in enumerate(lines)]


def _wrapped(line: str) -> list[str]:
    """The line in parts of a terminal's width; commands and paths stay whole, so that they can be copied."""
    whole = COMMAND.sub(lambda command: command[0].replace(" ", NO_BREAK), line)
    parts: list[str] = []
    for part in textwrap.wrap(whole, WIDTH - 2, break_on_hyphens=False, break_long_words=False):
        is_copyable = NO_BREAK in part or ("/" in part and len(part) < MAX_PATH_LENGTH)
        parts += [part] if is_copyable else textwrap.wrap(part, WIDTH - 2, break_on_hyphens=False)
    return [part.replace(NO_BREAK, " ") for part in parts]


def _place(error: ConfigError, argv: Sequence[str]) -> str:
    """Where a file of the user's says what is wrong."""
    from ippo_cli.cli.arguments import arguments
    from ippo_cli.config.files import written_at

    try:
        place = written_at(error.key, arguments(argv))
    except Exception:  # whatever is wrong with the arguments themselves is what the error is about
        return ""
    return f" ({place})" if place else ""


def _with_notes(message: str, error: BaseException) -> str:
    return "\n".join([message, *getattr(error, "__notes__", ())])


def _tell(error: IppoError, place: str = "") -> int:
    if not _told(error):
        print(block(_with_notes(f"ippo: {error}{place}", error)), file=sys.stderr, flush=True)
    return error.exit_code


def _told(error: BaseException) -> bool:
    """Whether another rank tells of it. Before the ranks have met, those of one machine find the same."""
    distributed = sys.modules.get("ippo_cli.engine.distributed")
    if distributed is None or not distributed.has_run():
        return os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) != "0"
    return getattr(error, "told", False)
