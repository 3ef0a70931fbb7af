"""Builds the configured trackers, and checks their requirements before models load."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ippo_cli.config.packages import check_tracker_packages, remote_trackers
from ippo_cli.config.schema import (
    Config,
    MlflowTrackerConfig,
    RemoteTrackerConfig,
    TrackerConfig,
    TrackioTrackerConfig,
    WandbTrackerConfig,
)
from ippo_cli.config.secrets import mask_secrets
from ippo_cli.reporting.trackers.callback import CallbackTracker, load_callback
from ippo_cli.reporting.trackers.remote import RemoteTracker
from ippo_cli.reporting.trackers.tensorboard_files import TensorBoardTracker
from ippo_cli.reporting.trackers.tracker import Tracker, TrackerGroup
from ippo_cli.runs.folder import TRACKER_ID, write_atomically

# Default environment variables of each library: no telemetry, files in the run's folder, and short timeouts, because
# rows are retried.
ENVIRONMENT: dict[str, Mapping[str, str]] = {
    "wandb": {
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_DATA_DIR": "{folder}/wandb",
        "WANDB_CACHE_DIR": "{folder}/wandb/cache",
    },
    "mlflow": {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    },
    "trackio": {"TRACKIO_DIR": "{output_dir}/trackio"},
}
TRACKIO_SERVERS = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")  # without these, runs are recorded locally


def check_tracker_usable(config: TrackerConfig, *, loads_code: bool = True) -> None:
    """Raise `ConfigError` if a package is missing, or the callback cannot be called with a row."""
    check_tracker_packages(config)
    if loads_code:
        check_tracker_code(config)


def check_tracker_code(config: TrackerConfig) -> None:
    """Raise `ConfigError` if the callback cannot be called with a row."""
    if config.callback is not None:
        load_callback(config.callback)


def build_trackers(config: TrackerConfig, folder: Path, settings: Mapping[str, Any]) -> TrackerGroup:
    """Build the trackers of the run in this folder; `settings`: the configuration that they show."""
    check_tracker_packages(config)
    found: list[Tracker] = []
    if config.tensorboard:
        found.append(TensorBoardTracker(folder))
    if config.callback is not None:
        found.append(CallbackTracker(config.callback, folder, settings))
    for kind in remote_trackers(config):
        assert isinstance(config, RemoteTrackerConfig)
        found.append(
            RemoteTracker(
                kind,
                _remote_run_settings(kind, config, folder, settings),
                finish_timeout_s=config.finish_timeout_s,
                environment=_environment(kind, folder, settings),
            )
        )
    return TrackerGroup(found)


def plain_settings(config: Config) -> dict[str, Any]:
    """The whole configuration as plain values, with secrets masked as in `config.yaml`."""
    return mask_secrets(json.loads(json.dumps(asdict(config))))


def _environment(kind: str, folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Default environment variables of a tracker's process."""
    places = {"folder": folder, "output_dir": _output_dir(folder, settings)}
    variables = {name: value.format(**places) for name, value in ENVIRONMENT[kind].items()}
    if kind == "trackio" and not any(os.environ.get(name) for name in TRACKIO_SERVERS):
        variables["HF_HUB_OFFLINE"] = "1"  # it would ask the hub for the user's name
    return variables


def _output_dir(folder: Path, settings: Mapping[str, Any]) -> Path:
    return Path(settings.get("output_dir", folder.parent.parent)).absolute()


def _remote_run_settings(
    kind: str, config: RemoteTrackerConfig, folder: Path, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Ids, names and settings of the run for a tracker.

    A run's folder is in `output_dir/name`, or for a sweep in the sweep's folder, which becomes the group.
    """
    experiment = str(settings.get("name", folder.parent.name))
    group = folder.parent.name
    run = {
        "id": _get_tracker_id(folder),
        "name": config.run_name or (folder.name if group == experiment else f"{group}/{folder.name}"),
        "group": group,
        "folder": str(folder),
        "process": os.getpid(),
        "settings": settings,
    }
    if kind == "wandb":
        assert isinstance(config, WandbTrackerConfig)
        own = {"project": config.project, "entity": config.entity, "tags": config.tags, "group": config.group or group}
        return run | own
    if kind == "trackio":
        assert isinstance(config, TrackioTrackerConfig)
        if config.run_name is not None:  # names identify runs, and several runs may have this one
            run["name"] = f"{config.run_name} {run['id'][:6]}"
        return run | {"project": config.project, "group": config.group or group}
    assert isinstance(config, MlflowTrackerConfig)
    files = _output_dir(folder, settings) / "mlruns"
    uri = os.environ.get("MLFLOW_TRACKING_URI") or files.as_uri()
    return run | {"experiment": config.experiment or experiment, "uri": uri}


def _get_tracker_id(folder: Path) -> str:
    """The tracker's id of the run, random and stored in the run's folder, so that a resumed run keeps it."""
    file = folder / TRACKER_ID
    with suppress(OSError):
        if known := file.read_text().strip():
            return known
    drawn = secrets.token_hex(8)
    write_atomically(file, drawn + "\n")
    return drawn
