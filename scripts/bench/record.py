"""A file with outcomes of a benchmark, written after each run, so that an interrupted benchmark continues."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from learning import Outcome, Point

from ippo_cli.compose.former_keys import convert_overrides

if TYPE_CHECKING:
    from algorithms import Job

FOLDERS = ("output_dir=", "critic.warm_start=")  # overrides that are not recorded


class Record:
    """A file with outcomes of runs, by task, algorithm and seed.

    Runs are compared by their overrides: a change of a default in `conf/` does not make a recorded run invalid. After a
    change that should, delete the file.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.outcomes: dict[tuple[str, str, int], Outcome] = {}
        self._lock = Lock()
        for row in json.loads(file.read_text()) if file.exists() else []:
            curve = [Point(**point) for point in row.pop("curve")]
            overrides = recorded_settings(convert_overrides(row["overrides"]))
            self._store(Outcome(**row | {"overrides": overrides}, curve=curve))

    def has(self, job: Job) -> bool:
        """Whether a run with these settings is recorded and did not fail."""
        found = self.outcomes.get((job.task, job.variant, job.seed))
        if found is None or found.error is not None:
            return False
        return list(found.overrides) == list(recorded_settings(job.overrides))

    def add(self, result: Outcome) -> None:
        """Record an outcome, also in the file, in place of an earlier one of the same run.

        Outcomes of other seeds with other settings are dropped: means over seeds are of one setting.
        """
        result.overrides = recorded_settings(result.overrides)
        setting = common_settings(result.overrides)
        with self._lock:
            for key, one in list(self.outcomes.items()):
                if key[:2] == (result.task, result.variant) and common_settings(one.overrides) != setting:
                    del self.outcomes[key]
            self._store(result)
            rows = [_row(self.outcomes[key]) for key in sorted(self.outcomes)]
            self.file.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.file.with_suffix(".new")
            temporary.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
            temporary.replace(self.file)

    def _store(self, result: Outcome) -> None:
        self.outcomes[result.task, result.variant, result.seed] = result


def recorded_settings(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides to record: without folders of runs, and models as names of folders, not as paths."""
    kept = (text.partition("=") for text in overrides if not text.startswith(FOLDERS))
    return tuple(f"{key}{sign}{Path(value).name if key.endswith('.model') else value}" for key, sign, value in kept)


def common_settings(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the recorded overrides that runs of all seeds have in common."""
    return tuple(text for text in recorded_settings(overrides) if not text.startswith(("seed=", "name=")))


def _row(result: Outcome) -> Mapping[str, object]:
    """Return an outcome as a row to record, with only the evaluations of its curve."""
    row: dict[str, Any] = asdict(result) | {"overrides": list(result.overrides)}
    row["curve"] = [point | {"seconds": round(point["seconds"], 2)} for point in row["curve"] if point["held_out"]]
    return row
