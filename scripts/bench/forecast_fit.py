"""Fit the forecast of collapse, and rules of one line, to the runs of `forecast_runs.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ippo_cli.forecast.features import FEATURES, MIN_ROWS, measure_features
from ippo_cli.forecast.forecast import TABLE

HORIZON = 20  # iterations
ERRORS = 2.0  # standard errors of the difference that a fall exceeds
THRESHOLD = 0.3  # of the warning: on left-out tasks almost half of these forecasts come true
LIMITS = (0.01, 0.99)  # quantiles that limit a feature
RIDGES = (3.0, 10.0, 30.0, 100.0, 300.0)
BINS = 8
DIGITS = 4
# Rules of one line: the metric in words, and the feature that carries it.
RULES = {
    "entropy below a threshold": "low_entropy",
    "approx_kl above a threshold": "update_kl",
    "clip_fraction above a threshold": "clipped",
    "ratio_max_deviation above a threshold": "ratio_tail",
    "gradient norm above its median by a factor": "gradient_growth",
    "training score below its best by a threshold": "score_fall",
    "entropy changes by more than a threshold": "entropy_jump",
}
SINGLE = "logistic regression of the best single metric"
NAMES = [feature.name for feature in FEATURES]
Array = np.ndarray
Scores = Mapping[int, tuple[float, float]]
"""Held-out mean and its standard error by iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Prefixes of runs: one row per evaluation with a known future."""

    values: Array  # [N, F]; NaN: missing
    labels: Array  # [N] bool: the score falls within the horizon
    families: Array  # [N] names
    runs: Array  # [N] numbers
    healthy: Array  # [N] bool: of runs that are not broken on purpose
    fallen: Array  # [N] bool: the score is below its best so far by more than noise

    def select(self, chosen: Array) -> Data:
        return Data(**{name: getattr(self, name)[chosen] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A logistic regression with the standardisation of its features."""

    lows: Array  # the limits of each feature: beyond the fitted values nothing is known
    highs: Array
    means: Array
    scales: Array
    weights: Array  # of standardised features
    intercept: float
    ridge: float

    def predict(self, values: Array) -> Array:
        limited = np.clip(values, self.lows, self.highs)
        return _logistic(_standardise(limited, self.means, self.scales) @ self.weights + self.intercept)


def read_scores(record: Mapping[str, Any]) -> Scores:
    return {int(at): (mean, error or 0.0) for at, (mean, error) in record["scores"].items() if mean is not None}


def falls(scores: Scores, at: int, horizon: int = HORIZON) -> bool | None:
    """Whether two evaluations in a row within the horizon are below the one at this iteration by more than noise.

    Noise: `ERRORS` standard errors of the difference of two independent means. None: the run ends before the horizon.
    """
    later = sorted(number for number in scores if at < number <= at + horizon)
    if max(scores) < at + horizon:
        return None
    mean, error = scores[at]
    below = [mean - scores[number][0] > ERRORS * math.hypot(error, scores[number][1]) for number in later]
    return any(one and other for one, other in pairwise(below))


def has_fallen(scores: Scores, at: int) -> bool:
    """Whether the score at this iteration is below the best one so far by more than noise: it has collapsed already."""
    best = max((number for number in scores if number <= at), key=lambda number: scores[number][0])
    (highest, one), (mean, other) = scores[best], scores[at]
    return highest - mean > ERRORS * math.hypot(one, other)


def read_rows(record: Mapping[str, Any]) -> list[dict[str, float | None]]:
    """The rows of `metrics.jsonl`, with the recorded metrics."""
    metrics = record["metrics"]
    count = len(next(iter(metrics.values())))
    return [
        {"iteration": place + 1.0} | {name: values[place] for name, values in metrics.items()} for place in range(count)
    ]


def build_data(records: Sequence[Mapping[str, Any]]) -> Data:
    """Features and labels at every evaluation with enough rows before it and the whole horizon after it."""
    found: list[tuple[list[float], bool, str, int, bool, bool]] = []
    for number, record in enumerate(records):
        scores, rows = read_scores(record), read_rows(record)
        for at in sorted(scores):
            if at < MIN_ROWS or at > len(rows) or (label := falls(scores, at)) is None:
                continue
            values = measure_features(rows[:at])
            numbers = [values[name].number if name in values else math.nan for name in NAMES]
            is_healthy = record["arm"] == "healthy"
            found.append((numbers, label, record["family"], number, is_healthy, has_fallen(scores, at)))
    columns = list(zip(*found, strict=True))
    return Data(
        values=np.array(columns[0], dtype=float),
        labels=np.array(columns[1], dtype=bool),
        families=np.array(columns[2]),
        runs=np.array(columns[3]),
        healthy=np.array(columns[4], dtype=bool),
        fallen=np.array(columns[5], dtype=bool),
    )


def fit(data: Data, ridge: float, names: Sequence[str] = NAMES) -> Model:
    """Ridge-penalised maximum likelihood by Newton's method; the intercept is not penalised."""
    used = np.array([name in names for name in NAMES])
    lows, highs = np.nanquantile(data.values, LIMITS, axis=0)
    values = np.clip(data.values, lows, highs)
    means, scales = (np.nan_to_num(measure(values, axis=0)) for measure in (np.nanmean, np.nanstd))
    inputs = np.column_stack([_standardise(values, means, scales) * used, np.ones(len(data.labels))])
    labels = data.labels.astype(float)
    penalty = np.diag([ridge] * len(NAMES) + [1e-6])
    weights = np.zeros(inputs.shape[1])
    for _ in range(50):
        chances = _logistic(inputs @ weights)
        slope = inputs.T @ (chances - labels) + penalty @ weights
        curvature = (inputs * (chances * (1 - chances))[:, None]).T @ inputs + penalty
        step = np.linalg.solve(curvature, slope)
        weights -= step
        if np.abs(step).max() < 1e-9:
            break
    return Model(
        lows=lows,
        highs=highs,
        means=means,
        scales=scales,
        weights=weights[:-1],
        intercept=float(weights[-1]),
        ridge=ridge,
    )


def fit_with_chosen_ridge(data: Data) -> Model:
    """Fit with the ridge that has the lowest log loss on left-out families of these data."""
    losses = {ridge: _log_loss(data.labels, predict_left_out(data, ridge)) for ridge in RIDGES}
    return fit(data, min(losses, key=lambda ridge: losses[ridge]))


def predict_left_out(data: Data, ridge: float) -> Array:
    """Predictions for each family by a fit to the others."""
    found = np.zeros(len(data.labels))
    for family in sorted(set(data.families.tolist())):
        own = data.families == family
        found[own] = fit(data.select(~own), ridge).predict(data.values[own])
    return found


def _standardise(values: Array, means: Array, scales: Array) -> Array:
    """Standardised features; 0 where they are missing."""
    return np.nan_to_num((values - means) / np.where(scales > 0, scales, 1.0)) * (scales > 0)


def _logistic(values: Array) -> Array:
    return 1 / (1 + np.exp(-np.clip(values, -30, 30)))


def _log_loss(labels: Array, chances: Array) -> float:
    chances = np.clip(chances, 1e-6, 1 - 1e-6)
    return float(-np.where(labels, np.log(chances), np.log(1 - chances)).mean())


def auc(labels: Array, scores: Array) -> float:
    """Probability that a prefix before a fall has a higher score than another one; ties count half."""
    positive = int(labels.sum())
    if positive in (0, len(labels)):
        return math.nan
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[inverse]
    return float((ranks[labels].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive)))


def brier(labels: Array, chances: Array) -> float:
    return float(((chances - labels) ** 2).mean())


def calibration_error(labels: Array, chances: Array) -> float:
    """Mean absolute difference of forecast and frequency over bins of equal size."""
    parts = np.array_split(np.argsort(chances, kind="stable"), BINS)
    return sum(len(part) * abs(chances[part].mean() - labels[part].mean()) for part in parts) / len(labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A feature and its best threshold on the fitting tasks, with the frequency of falls on either side."""

    feature: str
    threshold: float
    above: float
    below: float
    error: float  # Brier score on the fitting tasks

    def predict(self, values: Array) -> Array:
        column = values[:, NAMES.index(self.feature)]
        return np.where(column >= self.threshold, self.above, self.below)  # missing: below


def fit_rule(data: Data, feature: str) -> Rule:
    """The threshold with the lowest Brier score, of the feature's quantiles; more may be better or worse."""
    column = data.values[:, NAMES.index(feature)]
    known = column[~np.isnan(column)]
    best: Rule | None = None
    for threshold in np.unique(np.quantile(known, np.linspace(0.02, 0.98, 49))):
        side = column >= threshold
        if side.all() or not side.any():
            continue
        above, below = float(data.labels[side].mean()), float(data.labels[~side].mean())
        error = brier(data.labels, np.where(side, above, below))
        if best is None or error < best.error:
            best = Rule(feature=feature, threshold=float(threshold), above=above, below=below, error=error)
    base = float(data.labels.mean())
    return best or Rule(
        feature=feature,
        threshold=math.inf,
        above=base,
        below=base,
        error=brier(data.labels, np.full(len(data.labels), base)),
    )


def predict_all(data: Data) -> tuple[dict[str, Array], dict[str, str]]:
    """Predictions on left-out families: the forecast, each rule, the best rule and single metric, the base rate.

    Also, by family, the rule that was best on the other families.
    """
    found = {name: np.zeros(len(data.labels)) for name in ("forecast", "best rule", SINGLE, "base rate", *RULES)}
    chosen: dict[str, str] = {}
    for family in sorted(set(data.families.tolist())):
        own = data.families == family
        others, values = data.select(~own), data.values[own]
        found["forecast"][own] = fit_with_chosen_ridge(others).predict(values)
        rules = {title: fit_rule(others, feature) for title, feature in RULES.items()}
        for title, rule in rules.items():
            found[title][own] = rule.predict(values)
        chosen[family] = min(rules, key=lambda title: rules[title].error)
        found["best rule"][own] = rules[chosen[family]].predict(values)
        found["base rate"][own] = others.labels.mean()
        fits = [fit(others, RIDGES[0], [feature]) for feature in RULES.values()]
        single = min(fits, key=lambda model: brier(others.labels, model.predict(others.values)))
        found[SINGLE][own] = single.predict(values)
    return found, chosen


def write_table(model: Model, data: Data, records: Sequence[Mapping[str, Any]]) -> None:
    """Write the weights, with the standardisation folded in: weights are per unit of the feature."""
    features = {}
    for place, name in enumerate(NAMES):
        if model.scales[place] > 0:
            features[name] = {
                "weight": _round(model.weights[place] / model.scales[place]),
                "mean": _round(model.means[place]),
                "deviation": _round(model.scales[place]),
                "low": _round(model.lows[place]),
                "high": _round(model.highs[place]),
            }
    table = {
        "horizon": HORIZON,
        "threshold": THRESHOLD,
        "runs": len(set(data.runs.tolist())),
        "prefixes": len(data.labels),
        "base_rate": _round(data.labels.mean()),
        "ridge": model.ridge,
        "intercept": _round(model.intercept),
        "features": features,
    }
    TABLE.write_text(json.dumps(table, indent=1) + "\n")


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
