"""The forecast: a logistic regression of the features, with the weights of `weights.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ippo_cli.forecast.features import Row, Value, measure_features

RISK = "forecast/collapse_risk"  # the logged metric
TABLE = Path(__file__).with_name("weights.json")


@dataclass(frozen=True, slots=True)
class Weights:
    """A fitted table: log-odds of a fall are `intercept + sum(weight * (value - mean))` over the known features."""

    horizon: int  # iterations within which the score falls
    threshold: float  # probability above which a warning is printed
    intercept: float
    weights: Mapping[str, float]
    means: Mapping[str, float]  # of the runs that the table was fitted on
    limits: Mapping[str, tuple[float, float]]  # of almost all values of these runs; values beyond count as the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What a feature adds to the log-odds, beside the mean of the fitted runs."""

    feature: str
    owner: str  # an agent or a policy
    value: float
    log_odds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The probability that the held-out score falls, and the contributions, the largest first."""

    probability: float
    contributions: tuple[Contribution, ...]


@cache
def read_weights() -> Weights:
    """The table of this version."""
    stored: dict[str, Any] = json.loads(TABLE.read_text())
    rows = stored["features"]
    return Weights(
        horizon=stored["horizon"],
        threshold=stored["threshold"],
        intercept=stored["intercept"],
        weights={name: row["weight"] for name, row in rows.items()},
        means={name: row["mean"] for name, row in rows.items()},
        limits={name: (row["low"], row["high"]) for name, row in rows.items()},
    )


def forecast_collapse(rows: Sequence[Row], weights: Weights | None = None) -> Forecast | None:
    """Forecast from the rows of `metrics.jsonl` so far, oldest first; None for too few rows.

    Only training metrics of the last `features.WINDOW` rows are read: no evaluation, no time, no learning rate.
    """
    table = weights or read_weights()
    values = measure_features(rows, table.weights)
    return apply_weights(values, table) if values else None


def apply_weights(values: Mapping[str, Value], weights: Weights) -> Forecast:
    """Forecast from features; one that is missing counts as the mean of the fitted runs."""
    contributions = [
        Contribution(
            feature=name,
            owner=values[name].owner,
            value=values[name].number,
            log_odds=weight * (_limit(values[name].number, weights.limits[name]) - weights.means[name]),
        )
        for name, weight in weights.weights.items()
        if name in values
    ]
    log_odds = weights.intercept + sum(part.log_odds for part in contributions)
    return Forecast(
        probability=1 / (1 + math.exp(-log_odds)),
        contributions=tuple(sorted(contributions, key=lambda part: -part.log_odds)),
    )


def _limit(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])
