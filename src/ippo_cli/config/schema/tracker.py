"""`tracker=`: what is shown and written while a run goes on, and to whom its metrics are told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ippo_cli.config.constraints import Name, NonNegativeInt, PositiveFloat


class TrackerKind(str, Enum):
    none = "none"
    tensorboard = "tensorboard"
    wandb = "wandb"
    mlflow = "mlflow"
    wandb_mlflow = "wandb_mlflow"


class Console(str, Enum):
    auto = "auto"
    rich = "rich"
    plain = "plain"


@dataclass
class TrackerConfig:
    """What is shown and written while a run goes on."""

    kind: TrackerKind  # none | tensorboard (files alone) | wandb | mlflow | wandb_mlflow (both)
    tensorboard: bool  # write event files below the run's folder
    callback: Name | None  # path.py:function, called on rank 0 with a dict of each row's metrics; NaN is None
    console: Console  # auto (live display on a terminal) | rich | plain (one line per iteration)
    samples_every: NonNegativeInt  # iterations between sample tables; 0 = never
    samples: NonNegativeInt  # rows of a sample table
    turns: NonNegativeInt  # of agents with several turns: the first ones whose metrics are logged one by one; 0 = none
    profile: bool  # trace one iteration into the run's folder (profile/), and show where its time went


@dataclass
class RemoteTrackerConfig(TrackerConfig):
    """A tracker with runs of its own, which a process beside rank 0 speaks with."""

    run_name: Name | None  # of the run there; null = its folder's name, with the sweep's before it in a sweep
    finish_timeout_s: PositiveFloat  # seconds a run's end waits for rows to be sent; at most 5 unless it is done


@dataclass
class WandbTrackerConfig(RemoteTrackerConfig):
    """Weights & Biases. WANDB_MODE, WANDB_API_KEY and WANDB_BASE_URL are the environment's."""

    project: Name  # where the run lies
    entity: Name | None  # team or user that the project belongs to; null = WANDB_ENTITY, else the account's default
    group: Name | None  # which runs it is shown with; null = those of the same sweep, or of the same `name`
    tags: list[str]  # words that runs can be found by


@dataclass
class MlflowTrackerConfig(RemoteTrackerConfig):
    """MLflow, at MLFLOW_TRACKING_URI; where that is not set, in output_dir/mlruns."""

    experiment: Name | None  # where the run lies; null = `name`. A tag `group` names the sweep, or `name`


@dataclass
class WandbMlflowTrackerConfig(MlflowTrackerConfig, WandbTrackerConfig):
    """Weights & Biases and MLflow at once, with the keys of both: `tracker=[wandb,mlflow]`."""
