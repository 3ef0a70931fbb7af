"""Tools that run in the bubblewrap sandbox of programs: the text of their file, and a check before a run."""

from __future__ import annotations

import inspect
from contextlib import closing
from pathlib import Path

from ippo_cli.config.errors import ConfigError
from ippo_cli.processes.sandbox import BWRAP, START_TIMEOUT_S, ProgramFailed, Sandbox, find_sandbox_problem
from ippo_cli.tasks.tools.functions import find_adapted_argument, format_error
from ippo_cli.user_code.load import load_function


def read_source(reference: str, setting: str) -> tuple[str, str]:
    """The text of the file that defines a function, and the function's name."""
    location, _, name = reference.rpartition(":")
    file = location if location.endswith(".py") else inspect.getsourcefile(load_function(reference, setting))
    assert file is not None
    return Path(file).read_text(encoding="utf-8"), name


def check_sandboxed(reference: str, setting: str) -> None:
    """Raise `ConfigError` if there is no sandbox here, or if the function's file cannot be executed in it."""
    key = setting.removesuffix("tools")
    if (problem := find_sandbox_problem(BWRAP)) is not None:
        raise ConfigError(f"{key}tool_sandbox=true", f"has no sandbox on this machine ({problem})", "set it to false")
    if reason := find_adapted_argument(load_function(reference, setting)):
        rule = f"{reason}, and calls in the sandbox have plain named arguments"
        raise ConfigError(f"{setting}={reference}", rule, f"use JSON types, or {key}tool_sandbox=false")
    with closing(Sandbox(BWRAP, START_TIMEOUT_S)) as sandbox:
        try:
            sandbox.load(*read_source(reference, setting))
        except Exception as error:
            reason = str(error) if isinstance(error, ProgramFailed) else format_error(error)
            raise ConfigError(
                f"{setting}={reference}",
                f"cannot be imported in the sandbox ({reason})",
                "use one file and the standard library, or tool_sandbox=false",
            ) from error
