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
QUANTILES = (0.02, 0.15, 0.3, 0.5, 0.7, 0.85, 0.98)  # knots of a curve
RIDGES = (3.0, 10.0, 30.0, 100.0)
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
SINGLE = "curve of the best single metric"
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
    """An additive logistic regression: a piecewise linear curve of log-odds for each feature."""

    knots: list[Array]  # by feature, [K], increasing; empty: the feature is not known in these data
    curves: list[Array]  # by feature, [K] log-odds; 0 in the mean over the known values
    intercept: float
    ridge: float

    def predict(self, values: Array) -> Array:
        odds = np.full(len(values), self.intercept)
        for column, knots, curve in zip(values.T, self.knots, self.curves, strict=True):
            if len(knots):
                odds += np.where(np.isnan(column), 0.0, np.interp(np.nan_to_num(column), knots, curve))
        return _logistic(odds)


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
    """Penalised maximum likelihood by Newton's method. The penalty is on differences of log-odds between neighbouring
    knots, which are quantiles of the feature; the intercept is not penalised.
    """
    columns = [data.values[:, place] if name in names else np.array([math.nan]) for place, name in enumerate(NAMES)]
    knots = [_choose_knots(column) for column in columns]
    known = ~np.isnan(data.values)
    hats = [_hats(*pair) * own[:, None] for *pair, own in zip(data.values.T, knots, known.T, strict=True)]
    means = [hat.sum(axis=0) / max(own.sum(), 1) for hat, own in zip(hats, known.T, strict=True)]
    parts = [hat - mean * own[:, None] for hat, mean, own in zip(hats, means, known.T, strict=True)]
    inputs = np.column_stack([*parts, np.ones(len(data.labels))])
    weights = _maximise_likelihood(inputs, data.labels.astype(float), _penalty(knots, ridge))
    ends = np.cumsum([0, *(len(own) for own in knots)])
    own_weights = [weights[start:end] for start, end in pairwise(ends)]
    return Model(
        knots=knots,
        curves=[own - mean @ own for own, mean in zip(own_weights, means, strict=True)],
        intercept=float(weights[-1]),
        ridge=ridge,
    )


def _choose_knots(column: Array) -> Array:
    """The distinct quantiles of the known values, rounded as they are written."""
    known = column[~np.isnan(column)]
    if not len(known):
        return np.array([])
    return np.unique([_round(value) for value in np.quantile(known, QUANTILES)])


def _hats(column: Array, knots: Array) -> Array:
    """Values [N, K] of the linear B-splines at the knots; constant beyond them."""
    known = np.nan_to_num(column)
    return np.column_stack([np.zeros((len(column), 0)), *(np.interp(known, knots, row) for row in np.eye(len(knots)))])


def _penalty(knots: Sequence[Array], ridge: float) -> Array:
    """The quadratic form of the penalty over all weights and the intercept."""
    size = sum(map(len, knots)) + 1
    found, start = np.eye(size) * 1e-6, 0  # a constant that is added to a curve has no other penalty
    for own in knots:
        steps = np.diff(np.eye(len(own)), axis=0) if len(own) > 1 else np.zeros((0, len(own)))
        found[start : start + len(own), start : start + len(own)] += ridge * steps.T @ steps
        start += len(own)
    return found


def _maximise_likelihood(inputs: Array, labels: Array, penalty: Array) -> Array:
    weights = np.zeros(inputs.shape[1])
    for _ in range(50):
        chances = _logistic(inputs @ weights)
        slope = inputs.T @ (chances - labels) + penalty @ weights
        curvature = (inputs * (chances * (1 - chances))[:, None]).T @ inputs + penalty
        step = np.linalg.solve(curvature, slope)
        weights -= step
        if np.abs(step).max() < 1e-9:
            break
    return weights


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
    """Write the curves of all features that the runs log."""
    features = {
        name: {"knots": knots.tolist(), "log_odds": [_round(value) for value in curve.tolist()]}
        for name, knots, curve in zip(NAMES, model.knots, model.curves, strict=True)
        if len(knots)
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
