"""`tracker=mlflow`: logs a run to MLflow, in the child process. Requires the extra `mlflow`."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from ippo_cli.reporting.trackers.sample_turns import TURN_COLUMNS, turn_table

RUN_TAG = "ippo.run_id"
STATUS = {"done": "FINISHED", "failed": "FAILED"}  # other states: KILLED
MOST_METRICS, MOST_PARAMS, LONGEST_PARAM = 1000, 100, 6000  # limits per request
INVALID_CHARACTERS = re.compile(r"[^\w./ :-]")  # in names of metrics and parameters


class MlflowRun:
    """A run that is identified by a tag; an iteration that is logged twice has two points at one step."""

    def __init__(self, run: Mapping[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        with _lock_tracking_folder(run["uri"]):
            self._client = MlflowClient(tracking_uri=run["uri"])
            experiment = self._get_or_create_experiment(run["experiment"])
        existing = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{run['id']}'", max_results=1)
        if existing:
            self._id = existing[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            params = dict(existing[0].data.params)
        else:
            tags = {RUN_TAG: run["id"], "group": run["group"], "folder": run["folder"]}
            self._id = self._client.create_run(experiment, run_name=run["name"], tags=tags).info.run_id
            params = {}
        self._log_params(dict(_flatten_settings(run["settings"])), params)

    def log(self, row: Mapping[str, float | None], timestamp: float) -> None:
        step, milliseconds = int(row["iteration"] or 0), int(timestamp * 1000)
        metrics = [
            Metric(_sanitize_name(name), value, milliseconds, step)
            for name, value in row.items()
            if value is not None and name != "iteration"
        ]
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[start : start + MOST_METRICS])

    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        self._client.log_text(self._id, lines, f"samples/{name}.jsonl")
        columns = zip(TURN_COLUMNS, zip(*turn_table(rows), strict=True), strict=False)  # no turn: no column
        if table := {column: list(values) for column, values in columns}:
            self._client.log_table(self._id, table, f"samples/{name}.json")

    def finish(self, state: str) -> None:
        self._client.set_tag(self._id, "state", state)
        self._client.set_terminated(self._id, STATUS.get(state, "KILLED"))

    def _get_or_create_experiment(self, name: str) -> str:
        """The experiment's id; another run may create it at the same time."""
        if (experiment := self._client.get_experiment_by_name(name)) is None:
            try:
                return self._client.create_experiment(name)
            except MlflowException:
                if (experiment := self._client.get_experiment_by_name(name)) is None:
                    raise
        return experiment.experiment_id

    def _log_params(self, settings: Mapping[str, str], known_params: Mapping[str, str]) -> None:
        """Log new parameters. MLflow parameters are immutable, so changes of a resumed run are logged as tags."""
        new = [Param(name, value) for name, value in settings.items() if name not in known_params]
        for start in range(0, len(new), MOST_PARAMS):
            self._client.log_batch(self._id, params=new[start : start + MOST_PARAMS])
        changed = {name: value for name, value in settings.items() if known_params.get(name, value) != value}
        if changed:
            self._client.log_batch(self._id, tags=[RunTag(f"changed.{name}", value) for name, value in changed.items()])


@contextmanager
def _lock_tracking_folder(uri: str) -> Iterator[None]:
    """Lock a local tracking folder, so that jobs that start together do not create an experiment twice."""
    place = urlparse(uri)
    if place.scheme != "file":  # servers handle this themselves
        yield
        return
    folder = Path(url2pathname(place.path))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sanitize_name(name: str) -> str:
    """A name with characters that MLflow accepts: `score/pass_at_4` for `score/pass@4`."""
    return INVALID_CHARACTERS.sub("_", name.replace("@", "_at_"))


def _flatten_settings(settings: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The configuration's values as text, by dotted key."""
    if isinstance(settings, dict) and settings:
        for key, value in settings.items():
            yield from _flatten_settings(value, f"{prefix}.{key}" if prefix else key)
    else:
        text = settings if isinstance(settings, str) else json.dumps(settings)
        yield _sanitize_name(prefix), text[:LONGEST_PARAM]
