"""Process of one job of a sweep: `python -m ippo_cli.sweeps.worker`; reads the job as JSON from stdin."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn

from ippo_cli.runs.garbage_collection import relax_gc
from ippo_cli.runs.output import ignore_closed_output


def main() -> NoReturn:
    """Train one job; its result is written to `sweep.json`."""
    ignore_closed_output()
    relax_gc()
    from ippo_cli.compose.exits import exit_process, run_guarded

    exit_process(run_guarded(_train_job, []))


def _train_job() -> None:
    from ippo_cli.sweeps.folder import JobRow
    from ippo_cli.sweeps.job import SweepContext, train_row

    message = json.load(sys.stdin)
    known = message["sweep"]
    known |= {"folder": Path(known["folder"]), "command": tuple(known["command"]), "folders": tuple(known["folders"])}
    plain = message["plain"]
    train_row(SweepContext(**known), JobRow(**message["row"]), lambda: plain)


if __name__ == "__main__":
    main()
