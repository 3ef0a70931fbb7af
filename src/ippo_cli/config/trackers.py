"""What a tracker's own package needs, told before anything is started."""

from __future__ import annotations

from importlib.util import find_spec

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import MlflowTrackerConfig, TrackerConfig, WandbTrackerConfig


def remote_trackers(config: TrackerConfig) -> list[str]:
    """The packages that the run's metrics are sent with."""
    kinds = {"wandb": WandbTrackerConfig, "mlflow": MlflowTrackerConfig}
    return [name for name, kind in kinds.items() if isinstance(config, kind)]


def check_tracker_packages(config: TrackerConfig) -> None:
    """Raise `ConfigError` where the package of W&B or MLflow is asked for and not installed."""
    for package in remote_trackers(config):
        spec = find_spec(package)
        if spec is None or spec.origin is None:  # a folder of that name, such as wandb leaves behind, is no package
            raise ConfigError(
                f"tracker={config.kind.value}",
                f"needs the package {package}, which is not installed",
                f"run pip install 'ippo-cli[{package}]'",
            )
