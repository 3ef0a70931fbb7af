"""Jobs of a search with a launcher that runs a list of jobs and returns at their end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ippo_cli.config.errors import ConfigError
from ippo_cli.sweeps import folder as sweep_folder
from ippo_cli.sweeps.folder import STOP_FILE, JobRow, update_row
from ippo_cli.sweeps.job import SweepContext
from ippo_cli.sweeps.search import FixedJobs, run_search_in_rounds


class ThreeRounds(FixedJobs):
    """Two jobs more after each round, of which the last one has an invalid job."""

    def new_rows(self, folder: Path, rows: Sequence[JobRow]) -> list[JobRow]:
        if len(rows) >= 6 or any(row.state == "waiting" for row in rows):
            return []
        return [JobRow(len(rows) + place, [f"seed={len(rows) + place}"], f"{len(rows) + place}") for place in (1, 2)]


def launched_jobs(folder: Path, *, stop_after: int | None = None) -> list[list[int]]:
    rows = [JobRow(1, ["seed=1"], "1"), JobRow(2, ["seed=2"], "2")]
    sweep_folder.create_sweep_file(folder, [], rows)
    launched: list[list[int]] = []

    def launch(waiting: Sequence[JobRow]) -> None:
        launched.append([row.job for row in waiting])
        for row in waiting:
            with update_row(folder, row.job) as saved:
                saved.state = "done"
        if len(launched) == stop_after:
            (folder / STOP_FILE).write_text("15")

    def compose(row: JobRow) -> dict[str, object]:
        if row.job == 6:
            raise ConfigError("seed=6", "is wrong", "use another")
        return {}

    context = SweepContext(folder, "here", os.getpid(), (), (), False, None)
    run_search_in_rounds(ThreeRounds(), context, launch, compose, {1: {}, 2: {}})
    return launched


def test_each_round_is_launched_together_without_refused_jobs(tmp_path: Path) -> None:
    assert launched_jobs(tmp_path) == [[1, 2], [3, 4], [5]]
    assert sweep_folder.read_rows(tmp_path)[-1].state == "refused"


def test_stopped_sweep_launches_no_further_round(tmp_path: Path) -> None:
    assert launched_jobs(tmp_path, stop_after=1) == [[1, 2]]
