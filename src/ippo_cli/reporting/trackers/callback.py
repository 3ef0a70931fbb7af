"""`tracker=my.py:Tracker`: a user's function or class that gets every row of metrics."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.engine import progress
from ippo_cli.reporting.trackers.tracker import Row
from ippo_cli.user_code.errors import format_user_error
from ippo_cli.user_code.load import check_call, load_function

CALLBACK_KEY = "tracker.callback"
PARAMETERS = {"start": ("folder", "settings"), "log_samples": ("name", "rows"), "finish": ("state",)}
"""Parameters of the optional methods of a class."""


class CallbackTracker:
    """Calls `function(row)` with a dict of metrics; non-finite numbers are None.

    Calls are synchronous, in the training process:

        def report(row):
            print(row["iteration"], row.get("eval/sampled/score"))

    A class has `log(row)`, and may have `start(folder, settings)` at each start of the run, `log_samples(name, rows)`,
    and `finish(state)` with done, preempted or failed.
    """

    def __init__(self, function: str, folder: Path | None = None, settings: Mapping[str, Any] | None = None) -> None:
        self.name = f"{CALLBACK_KEY}={function}"
        self._component = load_callback(function)
        self._folder, self._settings = folder, dict(settings or {})
        self._is_started = False

    def log(self, row: Row, iteration: int) -> None:
        if not self._is_started:  # here, so that its failure is a warning, as those of other calls
            self._is_started = True
            self._call("start", self._folder, self._settings)
        self._call("log", dict(row))

    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._call("log_samples", name, [dict(row) for row in rows])

    def log_distributions(self, iteration: int, values: Mapping[str, Sequence[float]]) -> None:
        """Does nothing: code of users gets rows and samples."""

    def finish(self, state: str) -> None:
        self._call("finish", state)

    def _call(self, method: str, *arguments: Any) -> None:
        """Call a method if the user's object has it; a function is its own `log`."""
        call = getattr(self._component, method, self._component if method == "log" else None)
        try:
            if call is not None:
                call(*arguments)
        finally:
            progress.heartbeat()


def load_callback(function: str) -> Any:
    """Load the function, or an instance of the class. Raises `ConfigError` if it cannot be called as documented."""
    setting = f"{CALLBACK_KEY}={function}"
    found = load_function(function, CALLBACK_KEY)
    if not inspect.isclass(found):
        check_call(found, setting, ("row",))
        return found
    try:
        component: Any = found()
    except Exception as error:
        raise ConfigError(setting, f"cannot be built ({format_user_error(error)})", "fix the class") from error
    if not hasattr(component, "log"):
        raise ConfigError(setting, "has no method log(row)", "write it")
    check_call(component.log, f"{setting} log", ("row",))
    for name, parameters in PARAMETERS.items():
        if hasattr(component, name):
            check_call(getattr(component, name), f"{setting} {name}", parameters)
    return component
