"""Rules of evaluations during training: the metric that ranks checkpoints, and the end of a run by its scores."""

from __future__ import annotations

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config


def check_primary_metric(config: Config) -> None:
    """Raise `ConfigError` for a metric that no evaluation has."""
    mode, _, metric = config.task.primary_metric.partition("/")
    if mode not in ("sampled", "greedy") or not metric:
        raise ConfigError(
            f"task.primary_metric={config.task.primary_metric}",
            "is not an evaluation metric",
            "use sampled/METRIC or greedy/METRIC, such as sampled/score",
        )
    if mode == "greedy" and not config.evaluation.greedy:
        raise ConfigError(
            f"task.primary_metric={config.task.primary_metric}",
            "needs the greedy evaluation",
            "set evaluation.greedy=true, or a primary_metric that starts with sampled/",
        )
    if mode == "sampled" and not config.evaluation.sampled:
        raise ConfigError(
            f"task.primary_metric={config.task.primary_metric}",
            "needs the sampled evaluation",
            f"set evaluation.sampled=true, or task.primary_metric=greedy/{metric}",
        )


def check_patience(config: Config) -> None:
    """Raise `ConfigError` for `evaluation.patience` without evaluations during training."""
    if config.evaluation.patience is not None and not config.evaluation.every:
        raise ConfigError(
            f"evaluation.patience={config.evaluation.patience}",
            "has no effect with evaluation.every=0, which evaluates at both ends only",
            "use evaluation.every=10, or evaluation.patience=null",
        )
