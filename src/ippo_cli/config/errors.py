"""What can end a run, each with the exit code that scripts and schedulers see."""

from __future__ import annotations


class IppoError(Exception):
    """A failure that users are told about in one block, without a traceback."""

    exit_code = 1


class ConfigError(IppoError):
    """`key=value; the rule; what would work`, raised before any model is loaded."""

    exit_code = 2

    def __init__(self, setting: str, rule: str, remedy: str) -> None:
        super().__init__(f"{setting} {rule}; {remedy}")
        self.key = setting.partition("=")[0]


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
    """Checkpoints cannot be written."""

    exit_code = 13


class ResumeError(IppoError):
    """There is nothing to resume, or it does not fit."""

    exit_code = 14


class Preempted(IppoError):
    """The run was asked to leave, saved, and can be resumed."""

    exit_code = 75


INTERRUPTED = 130  # Ctrl-C
UNEXPECTED = 1
