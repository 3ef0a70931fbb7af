"""What can end a run, each with the exit code that scripts and schedulers see."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class IppoError(Exception):
    """A failure that users are told about in one block, without a traceback."""

    exit_code = 1
    told = False  # whether another rank tells of it

    def __reduce__(self) -> tuple[Callable[..., IppoError], tuple[type[IppoError], str]]:
        return _rebuild_error, (type(self), str(self))  # between ranks, whatever the arguments of its kind are


def _rebuild_error(kind: type[IppoError], message: str) -> IppoError:
    return kind.__new__(kind, message)


class ConfigError(IppoError):
    """`key=value; the rule; what would work`, raised before any model is loaded."""

    exit_code = 2

    def __init__(self, setting: str, rule: str, remedy: str) -> None:
        super().__init__(f"{setting} {rule}; {remedy}")
        self.key = setting.partition("=")[0]


class ConfigErrors(ConfigError):
    """Several mistakes of one command line, reported together."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        lines = "".join(f"\n  {error}" for error in errors)
        Exception.__init__(self, f"{len(errors)} mistakes{lines}")
        self.key = errors[0].key
        self.errors = tuple(errors)


def combine_errors(errors: Sequence[ConfigError]) -> ConfigError:
    """One error for all of these; a single one is returned as it is."""
    return errors[0] if len(errors) == 1 else ConfigErrors(errors)


def split_errors(error: ConfigError) -> tuple[ConfigError, ...]:
    """The single mistakes of which an error consists."""
    return error.errors if isinstance(error, ConfigErrors) else (error,)


Check = Callable[[], Iterable[ConfigError] | None]
"""Raises one error, or yields several that do not depend on each other."""


def collect_errors(checks: Iterable[Check], found: Sequence[ConfigError] = ()) -> list[ConfigError]:
    """The mistakes in `found`, then those that the checks raise or yield.

    A check that names a key with an earlier mistake would only report a consequence of it, and is left out. Once there
    is a mistake, checks may fail in other ways, since they rely on each other.
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
    """Losses or gradients stayed NaN or infinite."""

    exit_code = 10


class RewardError(IppoError):
    """More rewards failed than the budget allows."""

    exit_code = 12


class StorageError(IppoError):
    """The run's files cannot be written."""

    exit_code = 13


class ResumeError(IppoError):
    """There is nothing to resume, or it does not fit."""

    exit_code = 14


class Preempted(IppoError):
    """The run was asked to leave, saved, and can be resumed."""

    exit_code = 75


class OtherRankFailed(IppoError):
    """This rank leaves because another one failed; the reason is told there."""

    def __init__(self, rank: int, exit_code: int) -> None:
        super().__init__(f"left because rank {rank} failed")
        self.rank, self.exit_code = rank, exit_code


class PreemptionRequested(BaseException):
    """Abandons what is going on, which is done again after resuming. Like Ctrl-C's, no failure that code may catch."""


INTERRUPTED = 130  # Ctrl-C
BROKEN_PIPE = 141  # what a shell says of SIGPIPE: the output of a command that only prints is read no more
HUNG = 11  # ended by its watchdog
UNEXPECTED = 1


@contextmanager
def convert_storage_errors(target: str) -> Iterator[None]:
    """Raise `StorageError` where a file cannot be written; `what` says which."""
    try:
        yield
    except Exception as error:
        if isinstance(error, IppoError) or (reason := storage_error_message(error)) is None:
            raise
        raise StorageError(f"{target} cannot be written ({reason})") from error


def storage_error_message(error: BaseException) -> str | None:
    """The operating system's words where a file could not be written or read; None for any other failure.

    `torch.save` raises a RuntimeError in the place of its OSError, and safetensors and tokenizers have kinds of their
    own, which quote the system.
    """
    cause = find_os_error(error)
    if cause is not None:
        return f"{cause.strerror}: {cause.filename}" if cause.filename else str(cause.strerror)
    text = " ".join(str(error).split())
    return text if "(os error " in text else None


def is_disk_full(error: BaseException) -> bool:
    """Whether there was no room for a file."""
    cause = find_os_error(error)
    return (
        cause.errno in DISK_FULL_ERRNOS
        if cause is not None
        else any(f"(os error {code})" in str(error) for code in DISK_FULL_ERRNOS)
    )


def find_os_error(error: BaseException) -> OSError | None:
    """The OSError of the operating system that an exception is, or was raised for."""
    link: BaseException | None = error
    while link is not None and not (isinstance(link, OSError) and link.errno is not None):
        if isinstance(link, shutil.Error) and (first := _first_copy_error(link)) is not None:
            return first
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return link


def _first_copy_error(error: shutil.Error) -> OSError | None:
    """Why the first file of a folder could not be copied: `copytree` keeps its errors as text alone."""
    number = re.search(r"\[Errno (\d+)\]", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else None
