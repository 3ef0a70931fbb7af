"""`tracker=trackio`: logs a run with Trackio, in the child process. Requires the extra `trackio`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import trackio

from ippo_cli.reporting.trackers.sample_turns import TURN_COLUMNS, turn_table


class TrackioRun:
    """A run in a local project, or at the Space or server that TRACKIO_SPACE_ID or TRACKIO_SERVER_URL names.

    A run is identified by its name; an iteration that is logged twice has two points at one step.
    """

    def __init__(self, run: Mapping[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        warnings.showwarning = self._report_warning
        warnings.simplefilter("always", UserWarning)
        self._run = trackio.init(
            project=run["project"],
            name=run["name"],
            group=run["group"],
            config=dict(run["settings"]),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, row: Mapping[str, float | None], timestamp: float) -> None:
        metrics = {name: value for name, value in row.items() if value is not None and name != "iteration"}
        self._run.log(metrics, step=int(row["iteration"] or 0))

    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        kind, _, iteration = name.rpartition("_")
        table = trackio.Table(columns=list(TURN_COLUMNS), data=turn_table(rows))
        self._run.log({f"samples/{kind}": table}, step=int(iteration))

    def finish(self, state: str) -> None:
        self._run.finish()

    def _report_warning(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """Trackio reports its errors as warnings, and continues."""
        if "trackio" in Path(filename).parts:
            self._tell({"problem": f"reports: {' '.join(str(message).split())[:300]}"})
