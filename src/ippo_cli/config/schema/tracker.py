"""`tracker=`: console output, logged files, and tracking services."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ippo_cli.config.constraints import Name, NonNegativeInt, PositiveFloat
from ippo_cli.config.marks import InEval
from ippo_cli.config.schema.registry import option


class TrackerKind(str, Enum):
    none = "none"
    tensorboard = "tensorboard"
    wandb = "wandb"
    mlflow = "mlflow"
    trackio = "trackio"
    wandb_mlflow = "wandb_mlflow"
    wandb_trackio = "wandb_trackio"
    mlflow_trackio = "mlflow_trackio"
    wandb_mlflow_trackio = "wandb_mlflow_trackio"


class Console(str, Enum):
    auto = "auto"
    rich = "rich"
    plain = "plain"


@option("tracker", "tensorboard")
@option("tracker", "none", schema="tracker_tensorboard")
@dataclass
class TrackerConfig:
    """Console output and logged files."""

    kind: TrackerKind  # none | tensorboard (files only) | wandb | mlflow | trackio | wandb_mlflow (both), ...
    tensorboard: bool  # write event files to the run's folder
    callback: Name | None  # tracker=path.py:name: called on rank 0 with a dict of each iteration's metrics; NaN is None
    console: InEval[Console]  # auto (live display on a terminal) | rich | plain (one line per iteration)
    samples_every: NonNegativeInt  # iterations between sample tables, also after the first and the last one; 0 = never
    samples: InEval[NonNegativeInt]  # rows of a sample table
    sample_tokens: NonNegativeInt  # tokens of each sampled turn with their values, advantages and ratios; 0 = none
    turns: InEval[NonNegativeInt]  # log metrics per turn for this many first turns; 0 = none
    report: bool  # write report.html to the run's folder at its end
    profile: bool  # trace one iteration to the run's folder (profile/), and print its time per operation


@dataclass
class RemoteTrackerConfig(TrackerConfig):
    """A tracking service; a process beside rank 0 sends the metrics."""

    run_name: Name | None  # run name at the service; null = the run folder's name, after the sweep's
    finish_timeout_s: PositiveFloat  # seconds to send remaining metrics at the end; at most 5 if the run is not done


@dataclass
class ProjectTrackerConfig(RemoteTrackerConfig):
    """A tracking service with projects and groups of runs."""

    project: Name  # project of the run
    group: Name | None  # group of the run; null = the sweep, else `name`


@option("tracker", "wandb")
@dataclass
class WandbTrackerConfig(ProjectTrackerConfig):
    """Weights & Biases. WANDB_MODE, WANDB_API_KEY and WANDB_BASE_URL are environment variables."""

    entity: Name | None  # team or user that owns the project; null = WANDB_ENTITY, else the account's default
    tags: list[str]  # tags of the run


@option("tracker", "mlflow")
@dataclass
class MlflowTrackerConfig(RemoteTrackerConfig):
    """MLflow at MLFLOW_TRACKING_URI; output_dir/mlruns if it is not set."""

    experiment: Name | None  # experiment of the run; null = `name`. The tag `group` is the sweep, else `name`


@option("tracker", "trackio")
@dataclass
class TrackioTrackerConfig(ProjectTrackerConfig):
    """Trackio in TRACKIO_DIR, by default output_dir/trackio, or at TRACKIO_SPACE_ID or TRACKIO_SERVER_URL."""


@option("tracker", "wandb_mlflow")
@dataclass
class WandbMlflowTrackerConfig(MlflowTrackerConfig, WandbTrackerConfig):
    """Weights & Biases and MLflow together, with the keys of both: `tracker=[wandb,mlflow]`."""


@option("tracker", "wandb_trackio")
@dataclass
class WandbTrackioTrackerConfig(TrackioTrackerConfig, WandbTrackerConfig):
    """Weights & Biases and Trackio together, with the keys of both: `tracker=[wandb,trackio]`."""


@option("tracker", "mlflow_trackio")
@dataclass
class MlflowTrackioTrackerConfig(TrackioTrackerConfig, MlflowTrackerConfig):
    """MLflow and Trackio together, with the keys of both: `tracker=[mlflow,trackio]`."""


@option("tracker", "wandb_mlflow_trackio")
@dataclass
class WandbMlflowTrackioTrackerConfig(TrackioTrackerConfig, MlflowTrackerConfig, WandbTrackerConfig):
    """Weights & Biases, MLflow and Trackio, with the keys of all: `tracker=[wandb,mlflow,trackio]`."""
