"""The estimators and other parts of targets by name; each is imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ippo_cli.algorithms.estimator import Estimator, TargetPart
from ippo_cli.config.schema import AlgorithmConfig
from ippo_cli.reporting.metrics import add_metrics

METHODS = "ippo_cli.training.methods"
ESTIMATORS = {
    "gae": f"{METHODS}.gae:Gae",
    "reward_to_go": f"{METHODS}.reward_to_go:RewardToGo",
    "group": f"{METHODS}.groups:GroupNormalized",
    "leave_one_out": f"{METHODS}.groups:LeaveOneOut",
    "greedy_baseline": f"{METHODS}.greedy_baseline:GreedyEstimator",
    "function": "ippo_cli.algorithms.user_advantages:build_user_estimator",
    "none": "ippo_cli.algorithms.estimator:Estimator",
}


def build_estimator(config: AlgorithmConfig) -> Estimator:
    """The estimator of `algorithm.advantage`."""
    estimator = _load(ESTIMATORS[config.estimator.value])(config)
    add_metrics(getattr(estimator, "METRICS", {}))
    return estimator


def build_parts(config: AlgorithmConfig) -> list[TargetPart]:
    """The other parts of targets that a configuration asks for, in their order."""
    places = [
        *([f"{METHODS}.whitening:Whitening"] if config.advantage_normalization else []),
        *([] if config.cross_agent.capability_window is None else [f"{METHODS}.shared_rows:Capabilities"]),
        f"{METHODS}.ensembles:Disagreement",
    ]
    return [_load(place)(config) for place in places]


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
