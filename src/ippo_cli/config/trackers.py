"""Checks that the packages of trackers are installed."""

from __future__ import annotations

from importlib.util import find_spec

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import MlflowTrackerConfig, TrackerConfig, TrackioTrackerConfig, WandbTrackerConfig


def remote_trackers(config: TrackerConfig) -> list[str]:
    """Packages of the tracking services of a run."""
    kinds = {"wandb": WandbTrackerConfig, "mlflow": MlflowTrackerConfig, "trackio": TrackioTrackerConfig}
    return [name for name, kind in kinds.items() if isinstance(config, kind)]


def check_tracker_packages(config: TrackerConfig) -> None:
    """Raise `ConfigError` if the package of a configured tracker is not installed."""
    for package in remote_trackers(config):
        spec = find_spec(package)
        if spec is None or spec.origin is None:  # a folder of that name, such as wandb's output, is not a package
            raise ConfigError(
                f"tracker={config.kind.value}",
                f"needs the package {package}, which is not installed",
                f"run pip install 'ippo-cli[{package}]'",
            )
