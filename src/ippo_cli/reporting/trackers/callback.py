"""`tracker.callback`: calls a user's Python function with every row of metrics."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.engine import progress
from ippo_cli.reporting.trackers.tracker import Row
from ippo_cli.user_code.load import load_function

CALLBACK_KEY = "tracker.callback"


class CallbackTracker:
    """Calls `function(row)` with a dict of metrics; non-finite numbers are None.

    The call is synchronous, in the training process:

        def report(row):
            print(row["iteration"], row.get("eval/sampled/score"))
    """

    def __init__(self, function: str) -> None:
        self.name = f"{CALLBACK_KEY}={function}"
        self._function = load_callback(function)

    def log(self, row: Row, iteration: int) -> None:
        try:
            self._function(dict(row))
        finally:
            progress.heartbeat()

    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Does nothing: callbacks receive rows only."""

    def log_distributions(self, iteration: int, values: Mapping[str, Sequence[float]]) -> None:
        """Does nothing: callbacks receive rows only."""

    def finish(self, state: str) -> None:
        """Does nothing: callbacks receive rows only."""


def load_callback(function: str) -> Callable[[dict[str, float | None]], object]:
    """Load the function. Raises `ConfigError` if it does not exist or cannot be called with one row."""
    found = load_function(function, CALLBACK_KEY)
    setting = f"{CALLBACK_KEY}={function}"
    if inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(type(found).__call__):
        raise ConfigError(setting, "is async, but calls are not awaited", "use a function without async")
    try:
        inspect.signature(found).bind({})
    except TypeError as error:
        raise ConfigError(setting, f"cannot be called as function(row) ({error})", "let it take one dict") from None
    except ValueError:  # some C functions have no signature
        pass
    return found
