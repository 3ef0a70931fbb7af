"""Features of the forecast: numbers computed from the last rows of `metrics.jsonl`.

Each is computed for every agent or policy that logs its metrics, and the highest value counts: one failing agent
suffices. Values that are missing or not finite are left out; a feature without any is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from ippo_cli.forecast.statistics import (
    RECENT,
    change_of_log,
    log_growth,
    log_level,
    log_slope,
    lost_fraction,
    mean_jump,
    recent_mean,
    regained_fraction,
    score_decline,
    score_fall,
    score_gain,
    slope,
    spike_fraction,
)

WINDOW = 50  # rows that features read at most
MIN_ROWS = 4  # rows before there is a forecast

Row = Mapping[str, float | None]
Series = Mapping[str, Sequence[float]]
"""Metrics of one agent or policy by name: one value per row, NaN if missing."""


@dataclass(frozen=True, slots=True)
class Value:
    """A feature's value, and the agent or policy that has it."""

    number: float
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature: its metrics, and its value for one owner of them. `low` and `high` limit the value."""

    name: str
    meaning: str
    metrics: tuple[str, ...]  # the first of these alternatives that the owner logs; with `needs_all`, all
    compute: Callable[..., float]
    low: float
    high: float
    needs_all: bool = False
    window: int = WINDOW  # last rows that it reads


def measure_features(rows: Sequence[Row], names: Container[str] | None = None) -> dict[str, Value]:
    """The features of the last rows (oldest first) by name, without missing ones; empty for too few rows.

    `names`: of the features to measure; None: all. Metrics of others are not read, which takes most of the time.
    """
    last = [row for row in rows[-WINDOW:] if row.get("iteration")]
    if len(last) < MIN_ROWS:
        return {}
    wanted = FEATURES if names is None else [feature for feature in FEATURES if feature.name in names]
    windows: dict[str, int] = {}
    for feature in wanted:
        windows |= {name: max(feature.window, windows.get(name, 0)) for name in feature.metrics}
    owners = _split_by_owner(last, windows)
    found: dict[str, Value] = {}
    for feature in wanted:
        values = [Value(_measure(feature, series), name) for name, series in owners.items()]
        known = [value for value in values if not math.isnan(value.number)]
        if known:
            found[feature.name] = max(known, key=lambda value: value.number)
    return found


def _split_by_owner(rows: Sequence[Row], windows: Mapping[str, int]) -> Mapping[str, Series]:
    """The metrics of the last row in their windows, by owner: the first part of a metric's name."""
    owners: dict[str, dict[str, Sequence[float]]] = {}
    for key in rows[-1]:
        owner, _, metric = key.partition("/")
        if metric in windows:
            values = [row.get(key) for row in rows[-windows[metric] :]]
            owners.setdefault(owner, {})[metric] = _replace_unknown(values)
    return owners


def _replace_unknown(values: Sequence[float | None]) -> Sequence[float]:
    """The values with NaN for null and for what is not finite."""
    if None not in values:
        total = sum(values)  # type: ignore[arg-type]
        if total - total == 0:  # all are finite, which is quick to find out
            return values  # type: ignore[return-value]
    return [value if value is not None and math.isfinite(value) else math.nan for value in values]


def _measure(feature: Feature, series: Series) -> float:
    known = [series[name] for name in feature.metrics if name in series]
    if not known or (feature.needs_all and len(known) < len(feature.metrics)):
        return math.nan
    value = feature.compute(*known) if feature.needs_all else feature.compute(known[0])
    return value if math.isnan(value) else min(max(value, feature.low), feature.high)


ENTROPY, KL = ("policy/entropy",), ("policy/approx_kl",)
GRADIENT = ("policy/grad_norm", "joint/grad_norm")
SCORES = ("score/mean", "score/std")
FEATURES: tuple[Feature, ...] = (
    Feature(
        name="low_entropy",
        meaning="minus the decimal logarithm of the entropy, nats per token",
        metrics=ENTROPY,
        compute=lambda values: -log_level(values, 1e-3),
        low=-1.0,
        high=3.0,
    ),
    Feature(
        name="entropy_lost",
        meaning="logarithm of the highest entropy of the window over the recent one",
        metrics=ENTROPY,
        compute=lost_fraction,
        low=0.0,
        high=4.0,
    ),
    Feature(
        name="entropy_regained",
        meaning="logarithm of the recent entropy over the lowest one of the window",
        metrics=ENTROPY,
        compute=regained_fraction,
        low=0.0,
        high=4.0,
    ),
    Feature(
        name="entropy_fall",
        meaning="fall of the entropy's logarithm, per iteration",
        metrics=ENTROPY,
        compute=lambda values: -log_slope(values),
        low=-1.0,
        high=1.0,
    ),
    Feature(
        name="entropy_jump",
        meaning="decimal logarithm of the change of the entropy between iterations, nats per token",
        metrics=ENTROPY,
        compute=lambda values: math.log10(max(jump, 1e-4)) if (jump := mean_jump(values)) == jump else math.nan,
        low=-4.0,
        high=1.0,
    ),
    Feature(
        name="update_kl",
        meaning="decimal logarithm of approx_kl, nats per token",
        metrics=KL,
        compute=lambda values: log_level(values, 1e-5),
        window=RECENT,
        low=-5.0,
        high=1.0,
    ),
    Feature(
        name="reference_kl",
        meaning="log-ratio to the initial policy, nats per token",
        metrics=("kl/reference",),
        compute=recent_mean,
        window=RECENT,
        low=0.0,
        high=5.0,
    ),
    Feature(
        name="clipped",
        meaning="clip_fraction",
        metrics=("policy/clip_fraction",),
        compute=recent_mean,
        window=RECENT,
        low=0.0,
        high=1.0,
    ),
    Feature(
        name="ratio_tail",
        meaning="decimal logarithm of ratio_max_deviation",
        metrics=("policy/ratio_max_deviation",),
        compute=lambda values: log_level(values, 1e-3),
        window=RECENT,
        low=-3.0,
        high=3.0,
    ),
    Feature(
        name="gradient_growth",
        meaning="logarithm of the recent gradient norm over its median in the window",
        metrics=GRADIENT,
        compute=log_growth,
        low=-3.0,
        high=3.0,
    ),
    Feature(
        name="gradient_spikes",
        meaning="fraction of recent optimizer steps with a spike of the gradient norm",
        metrics=("policy/grad_norm_spikes", "policy/steps"),
        needs_all=True,
        compute=spike_fraction,
        window=RECENT,
        low=0.0,
        high=0.5,
    ),
    Feature(
        name="unexplained_variance",
        meaning="1 - explained_variance of the values",
        metrics=("value/explained_variance",),
        compute=lambda values: 1 - recent_mean(values),
        window=RECENT,
        low=0.0,
        high=2.0,
    ),
    Feature(
        name="explained_variance_fall",
        meaning="fall of explained_variance, per iteration",
        metrics=("value/explained_variance",),
        compute=lambda values: -slope(values),
        low=-1.0,
        high=1.0,
    ),
    Feature(
        name="value_loss_growth",
        meaning="logarithm of the recent value loss over its median in the window",
        metrics=("value/loss",),
        compute=log_growth,
        low=-3.0,
        high=3.0,
    ),
    Feature(
        name="ties",
        meaning="fraction of responses with zero advantages (groups of equal scores)",
        metrics=("targets/zero_advantage_fraction",),
        compute=recent_mean,
        window=RECENT,
        low=0.0,
        high=1.0,
    ),
    Feature(
        name="score_fall",
        meaning="mean score below its best mean of four iterations, standard deviations of scores",
        metrics=SCORES,
        needs_all=True,
        compute=score_fall,
        low=0.0,
        high=2.0,
    ),
    Feature(
        name="score_decline",
        meaning="fall of the mean score per iteration, standard deviations of scores",
        metrics=SCORES,
        needs_all=True,
        compute=score_decline,
        low=-1.0,
        high=1.0,
    ),
    Feature(
        name="score_gain",
        meaning="mean score above the window's first one, standard deviations of scores",
        metrics=SCORES,
        needs_all=True,
        compute=score_gain,
        low=-2.0,
        high=2.0,
    ),
    Feature(
        name="score_spread_lost",
        meaning="logarithm of the highest standard deviation of scores over the recent one",
        metrics=("score/std",),
        compute=lost_fraction,
        low=0.0,
        high=4.0,
    ),
    Feature(
        name="longer",
        meaning="logarithm of the response length over the window's first one",
        metrics=("rollout/response_length",),
        compute=change_of_log,
        low=-2.0,
        high=2.0,
    ),
)
