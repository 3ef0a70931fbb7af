"""One job of a sweep in a process of its own: `python -m ippo_cli.sweeps.worker`, told on stdin what to train."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn

from ippo_cli.runs.garbage_collection import collect_seldom
from ippo_cli.runs.output import outlive_readers


def main() -> NoReturn:
    """Train one job; how it ended stands in the sweep's rows."""
    outlive_readers()
    collect_seldom()
    from ippo_cli.compose.exits import guarded, leave

    leave(guarded(_work, []))


def _work() -> None:
    from ippo_cli.sweeps.folder import Row
    from ippo_cli.sweeps.job import Sweep, run_row

    told = json.load(sys.stdin)
    known = told["sweep"]
    known |= {"folder": Path(known["folder"]), "command": tuple(known["command"]), "folders": tuple(known["folders"])}
    plain = told["plain"]
    run_row(Sweep(**known), Row(**told["row"]), lambda: plain)


if __name__ == "__main__":
    main()
