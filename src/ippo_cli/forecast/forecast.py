"""The forecast: an additive logistic regression, with a curve of log-odds for each feature in `weights.json`."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ippo_cli.forecast.features import Row, Value, measure_features

RISK = "forecast/collapse_risk"  # the logged metric
TABLE = Path(__file__).with_name("weights.json")


@dataclass(frozen=True, slots=True)
class Curve:
    """Log-odds of a feature: linear between knots, constant beyond the first and the last one."""

    knots: tuple[float, ...]  # increasing
    log_odds: tuple[float, ...]  # their mean over the fitted runs is 0

    def interpolate(self, value: float) -> float:
        """The log-odds that a value adds."""
        place = bisect_right(self.knots, value)
        if place in (0, len(self.knots)):
            return self.log_odds[min(place, len(self.knots) - 1)]
        low, high = self.knots[place - 1 : place + 1]
        part = (value - low) / (high - low)
        return (1 - part) * self.log_odds[place - 1] + part * self.log_odds[place]


@dataclass(frozen=True, slots=True)
class Weights:
    """A fitted table: log-odds of a fall are `intercept` plus what the curve of each known feature adds."""

    horizon: int  # iterations within which the score falls
    threshold: float  # probability above which a warning is printed
    intercept: float
    curves: Mapping[str, Curve]


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
    return Weights(
        horizon=stored["horizon"],
        threshold=stored["threshold"],
        intercept=stored["intercept"],
        curves={name: Curve(tuple(row["knots"]), tuple(row["log_odds"])) for name, row in stored["features"].items()},
    )


def forecast_collapse(rows: Sequence[Row], weights: Weights | None = None) -> Forecast | None:
    """Forecast from the rows of `metrics.jsonl` so far, oldest first; None for too few rows.

    Only training metrics of the last `features.WINDOW` rows are read: no evaluation, no time, no learning rate.
    """
    table = weights or read_weights()
    values = measure_features(rows, table.curves)
    return apply_weights(values, table) if values else None


def apply_weights(values: Mapping[str, Value], weights: Weights) -> Forecast:
    """Forecast from features; one that is missing adds nothing, like the mean of the fitted runs."""
    contributions = [
        Contribution(
            feature=name,
            owner=values[name].owner,
            value=values[name].number,
            log_odds=curve.interpolate(values[name].number),
        )
        for name, curve in weights.curves.items()
        if name in values
    ]
    log_odds = weights.intercept + sum(part.log_odds for part in contributions)
    return Forecast(
        probability=1 / (1 + math.exp(-log_odds)),
        contributions=tuple(sorted(contributions, key=lambda part: -part.log_odds)),
    )
