"""Errors that end a run, with their exit codes."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from ippo_cli.config.escape import escape_text

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class IppoError(Exception):
    """A failure that is reported to the user in one block, without a traceback."""

    exit_code = 1
    reported = False  # whether another rank reports it

    def __reduce__(self) -> tuple[Callable[..., IppoError], tuple[type[IppoError], str]]:
        return _rebuild_error, (type(self), str(self))  # pickling between ranks must not depend on __init__ arguments


def _rebuild_error(kind: type[IppoError], message: str) -> IppoError:
    return kind.__new__(kind, message)


class ConfigError(IppoError):
    """`key=value; the rule; what would work`, raised before any model loads."""

    exit_code = 2

    def __init__(self, setting: str, rule: str, remedy: str) -> None:
        super().__init__(escape_text(f"{setting} {rule}; {remedy}"))  # values of users cannot begin a line
        self.key = setting.partition("=")[0]


class UnknownKey(ConfigError):
    """A key that no option has; `compose/mistakes.py` explains it together with the other mistakes."""

    def __init__(self, text: str) -> None:
        super().__init__(text, "is not a key", "ippo-train --help and docs/config.md list all keys")


class UnusableServer(ConfigError):
    """A server that a key names does not answer or does not fit, found before any model loads."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, escape_text(message))
        self.key = message.partition("=")[0]


class RowError(ConfigError):
    """A mistake in one row of the data; `row` counts from 0, and `place` names it."""

    def __init__(self, error: ConfigError, row: int, place: str) -> None:
        Exception.__init__(self, f"{error} ({place})")
        self.key, self.error, self.row = error.key, error, row


class ConfigErrors(ConfigError):
    """Several mistakes of one command, reported together."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        lines = "".join(f"\n  {error}" for error in errors)
        Exception.__init__(self, f"{len(errors)} mistakes{lines}")
        self.key = errors[0].key
        self.errors = tuple(errors)


def combine_errors(errors: Sequence[ConfigError]) -> ConfigError:
    """Combine errors into one; a single error is returned unchanged."""
    return errors[0] if len(errors) == 1 else ConfigErrors(errors)


def split_errors(error: ConfigError) -> tuple[ConfigError, ...]:
    """The single mistakes of a combined error."""
    return error.errors if isinstance(error, ConfigErrors) else (error,)


Check = Callable[[], Iterable[ConfigError] | None]
"""Raises one error, or yields several independent errors."""


def collect_errors(checks: Iterable[Check], found: Sequence[ConfigError] = ()) -> list[ConfigError]:
    """Collect `found` and the errors that the checks raise or yield.

    Errors that mention a key of an earlier error are consequences of it and are dropped. After the first error other
    exceptions of checks are ignored, because checks rely on each other.
    """
    errors = list(found)
    for check in checks:
        earlier = list(errors)
        try:
            for error in _run_check(check):
                if not any(_mentions_key(error, old.key) for old in earlier) and str(error) not in map(str, errors):
                    errors.append(error)
        except Exception:
            if not errors:
                raise
    return errors


def _run_check(check: Check) -> Iterator[ConfigError]:
    try:
        yield from check() or ()
    except ConfigError as error:
        yield from split_errors(error)


def _mentions_key(error: ConfigError, key: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", str(error)) is not None


class PreflightError(IppoError):
    """A model, file or device that the configuration names cannot be used."""

    exit_code = 3


class NonFiniteError(IppoError):
    """Losses or gradients were NaN or infinite in several consecutive steps."""

    exit_code = 10


class RewardError(IppoError):
    """More rewards failed than the budget allows."""

    exit_code = 12


class StorageError(IppoError):
    """The run's files cannot be written."""

    exit_code = 13


class ResumeError(IppoError):
    """There is no run to resume, or it does not match the configuration."""

    exit_code = 14


class VerificationError(IppoError):
    """A run is not what it recorded, or its iterations cannot be executed again."""

    exit_code = 15


class EngineError(IppoError):
    """An inference engine failed: it did not start, does not answer, or has other weights than the trainer."""

    exit_code = 16


class Preempted(IppoError):
    """The run received a preemption signal, was saved, and can be resumed."""

    exit_code = 75


class OtherRankFailed(IppoError):
    """This rank exits because another rank failed, which reports the reason."""

    def __init__(self, rank: int, exit_code: int) -> None:
        super().__init__(f"exiting because rank {rank} failed")
        self.rank, self.exit_code = rank, exit_code


class Interruption(BaseException):
    """An exception that ends the work of a process, as KeyboardInterrupt does, and is no failure of user code."""


class PreemptionRequested(Interruption):
    """Aborts the current iteration, which is repeated after resuming."""


def raise_interruption(error: BaseException) -> None:
    """Raise an exception that user code is not the cause of: an interruption, or an error of this package."""
    if isinstance(error, KeyboardInterrupt | Interruption | IppoError):
        raise error


INTERRUPTED = 130  # Ctrl-C
BROKEN_PIPE = 141  # a shell's exit code of SIGPIPE: the reader of the output exited
HUNG = 11  # ended by the watchdog
UNEXPECTED = 1


@contextmanager
def convert_storage_errors(target: str) -> Iterator[None]:
    """Convert errors of writing a file to `StorageError`; `target` names the file in the message."""
    try:
        yield
    except Exception as error:
        if isinstance(error, IppoError) or (reason := storage_error_message(error)) is None:
            raise
        raise StorageError(f"{target} cannot be written ({reason})") from error


def storage_error_message(error: BaseException) -> str | None:
    """The operating system's message if a file could not be written or read; None for other failures.

    `torch.save` raises a RuntimeError instead of an OSError; safetensors and tokenizers raise their own exceptions,
    which quote the system's message.
    """
    cause = find_os_error(error)
    if cause is not None:
        return f"{cause.strerror}: {cause.filename}" if cause.filename else str(cause.strerror)
    text = " ".join(str(error).split())
    return text if "(os error " in text else None


def is_disk_full(error: BaseException) -> bool:
    """Whether the disk is full or a quota or size limit is exceeded."""
    cause = find_os_error(error)
    return (
        cause.errno in DISK_FULL_ERRNOS
        if cause is not None
        else any(f"(os error {code})" in str(error) for code in DISK_FULL_ERRNOS)
    )


def find_os_error(error: BaseException) -> OSError | None:
    """The OSError in the cause chain of an exception; None without one."""
    link: BaseException | None = error
    while link is not None and not (isinstance(link, OSError) and link.errno is not None):
        if isinstance(link, shutil.Error) and (first := _first_copy_error(link)) is not None:
            return first
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return link


def _first_copy_error(error: shutil.Error) -> OSError | None:
    """The first OSError of `copytree`, which keeps its errors as text only."""
    number = re.search(r"\[Errno (\d+)\]", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else None
