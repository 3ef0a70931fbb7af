"""Fit the probabilities of `ippo_cli.pilot.outlook` to pilots of runs with a known outcome, and judge them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from forecast_fit import Array, brier, calibration_error
from learning import write_between
from pilots import PAGE

from ippo_cli.formulas.estimates import wilson
from ippo_cli.pilot.outlook import FEATURES, TABLE, WORDS, measure_features

MARKERS = ("<!-- outcomes -->", "<!-- /outcomes -->")
RIDGES = (1.0, 3.0, 10.0, 30.0, 100.0)
LIMITS = (0.02, 0.98)  # quantiles that limit a feature
FEW = 3  # pilots with a finding, below which it counts as unknown
RESAMPLES = 1000
DIGITS = 4
OUTCOMES, NAMES = list(WORDS), list(FEATURES)
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """One row for each pilot."""

    values: Array  # [N, F]; NaN: unknown
    outcomes: Array  # [N] places in OUTCOMES
    families: Array  # [N] names
    verdicts: Array  # [N] names

    def select(self, chosen: Array) -> Data:
        return Data(**{name: getattr(self, name)[chosen] for name in self.__slots__})

    @property
    def labels(self) -> Array:
        """`[N, 4]`, 1 for the outcome of each run."""
        return np.eye(len(OUTCOMES))[self.outcomes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A multinomial regression of standardised features."""

    lows: Array
    highs: Array
    means: Array
    scales: Array
    weights: Array  # [F + 1, 4], the intercepts last
    ridge: float

    def predict(self, values: Array) -> Array:
        moved = np.nan_to_num((np.clip(values, self.lows, self.highs) - self.means) / self.scales)
        return _softmax(np.column_stack([moved, np.ones(len(moved))]) @ self.weights)


def main(command: str, records: Sequence[Record]) -> int:
    known = [record for record in records if "policies" in record]
    data = Data(
        values=np.array([[measure_features(record)[name] for name in NAMES] for record in known]),
        outcomes=np.array([OUTCOMES.index(record["outcome"]) for record in known]),
        families=np.array([record["family"] for record in known]),
        verdicts=np.array([record["verdict"] for record in known]),
    )
    if command == "fit":
        write_model(fit_with_chosen_ridge(data), known)
    text = judge(data)
    if command == "judge":
        write_between(PAGE, text, MARKERS)
    print(text)
    return 0


def fit(data: Data, ridge: float) -> Model:
    """Ridge-penalised maximum likelihood by Newton's method; intercepts are not penalised."""
    lows, highs = np.nanquantile(data.values, LIMITS, axis=0)
    values = np.clip(data.values, lows, highs)
    means, deviations = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    scales = np.where(deviations > 0, deviations, 1.0)
    inputs = np.column_stack([np.nan_to_num((values - means) / scales), np.ones(len(values))])
    size, count = inputs.shape[1], len(OUTCOMES)
    penalty = np.kron(np.eye(count), np.diag([ridge] * (size - 1) + [1e-3]))
    weights = np.zeros(size * count)
    for _ in range(50):
        chances = _softmax(inputs @ weights.reshape(count, size).T)
        slope = ((chances - data.labels).T @ inputs).ravel() + penalty @ weights
        curvature = penalty + np.block(
            [
                [inputs.T @ (inputs * (chances[:, one] * ((one == other) - chances[:, other]))[:, None])
                 for other in range(count)]
                for one in range(count)
            ]
        )  # fmt: skip
        step = np.linalg.solve(curvature, slope)
        weights -= step
        if np.abs(step).max() < 1e-9:
            break
    return Model(
        lows=lows, highs=highs, means=means, scales=scales, weights=weights.reshape(count, size).T, ridge=ridge
    )


def fit_with_chosen_ridge(data: Data) -> Model:
    """Fit with the ridge that has the lowest Brier score on left-out families of these data."""

    def score(ridge: float) -> float:
        chances = predict_left_out(data, lambda others, own: fit(others, ridge).predict(own.values))
        return brier(data.labels, chances)

    return fit(data, min(RIDGES, key=score))


def predict_left_out(data: Data, predict: Callable[[Data, Data], Array]) -> Array:
    """`[N, 4]`: predictions for each family from the others."""
    found = np.zeros((len(data.outcomes), len(OUTCOMES)))
    for family in sorted(set(data.families.tolist())):
        own = data.families == family
        found[own] = predict(data.select(~own), data.select(own))
    return found


def predict_by_verdict(others: Data, own: Data) -> Array:
    """The frequency of each outcome with the same verdict; one pseudo-run has the outcomes of all."""
    base = others.labels.mean(axis=0)
    rows = [others.labels[others.verdicts == verdict] for verdict in own.verdicts]
    return np.array([(row.sum(axis=0) + base) / (len(row) + 1) for row in rows])


def judge(data: Data) -> str:
    """The tables of the page."""
    found = {
        "fit": predict_left_out(data, lambda others, own: fit_with_chosen_ridge(others).predict(own.values)),
        "frequency of the verdict": predict_left_out(data, predict_by_verdict),
        "frequency of all": predict_left_out(
            data, lambda others, own: np.tile(others.labels.mean(axis=0), (len(own.outcomes), 1))
        ),
    }
    labels, source = data.labels, np.random.default_rng(0)
    draws = [source.integers(len(labels), size=len(labels)) for _ in range(RESAMPLES)]
    heads = [f"{WORDS[name]} ({int(labels[:, place].sum())})" for place, name in enumerate(OUTCOMES)]
    lines = [
        f"{len(labels)} runs of {len(set(data.families.tolist()))} task families; each family is forecast by a fit to "
        "the others. Brier scores, with 95 % intervals of a bootstrap over runs:",
        "",
        f"| on left-out tasks | {' | '.join(heads)} | all four |",
        f"|---{'|---' * (len(heads) + 1)}|",
    ]
    for title, chances in found.items():
        cells = [_interval(labels[:, place], chances[:, place], draws) for place in range(len(OUTCOMES))]
        cells.append(_interval(labels, chances, draws))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    gains = [
        brier(labels[part], found["frequency of the verdict"][part]) - brier(labels[part], found["fit"][part])
        for part in draws
    ]
    low, high = np.quantile(gains, (0.025, 0.975))
    gain = f"{np.mean(gains):.3f} ({low:.3f} to {high:.3f})"
    lines += ["", f"All four: that of the fit is lower than that of the verdict by {gain}."]
    for place in (OUTCOMES.index("learned"), OUTCOMES.index("collapsed")):
        errors = [calibration_error(labels[:, place], found[title][:, place]) for title in found]
        shown = ", ".join(f"{error:.3f} ({title})" for title, error in zip(found, errors, strict=True))
        lines += ["", f"Calibration error of *{WORDS[OUTCOMES[place]]}*, eight bins: {shown}.", ""]
        lines += _calibration_table(labels[:, place], found["fit"][:, place])
    return "\n".join([*lines, "", *_verdict_table(data)])


def _interval(labels: Array, chances: Array, draws: Sequence[Array]) -> str:
    low, high = np.quantile([brier(labels[part], chances[part]) for part in draws], (0.025, 0.975))
    return f"{brier(labels, chances):.3f} ({low:.3f} to {high:.3f})"


def _calibration_table(labels: Array, chances: Array) -> list[str]:
    lines = ["| forecast of left-out tasks | runs | mean forecast | frequency |", "|---|---|---|---|"]
    for low, high in ((0, 0.15), (0.15, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 1.001)):
        part = (chances >= low) & (chances < high)
        if part.any():
            means = f"{chances[part].mean():.2f} | {labels[part].mean():.2f}"
            lines.append(f"| {low:g} to {min(high, 1):g} | {part.sum()} | {means} |")
    return lines


def _verdict_table(data: Data) -> list[str]:
    """Frequencies of outcomes by verdict, with Wilson's intervals."""
    heads = [WORDS[name] for name in OUTCOMES]
    lines = [f"| verdict of the pilot | runs | {' | '.join(heads)} |", f"|---|---{'|---' * len(heads)}|"]
    for verdict, count in Counter(data.verdicts.tolist()).most_common():
        cells = []
        for share in data.labels[data.verdicts == verdict].mean(axis=0).tolist():
            low, high = wilson(share, count)
            cells.append(f"{share:.0%} ({low:.0%} to {high:.0%})")
        lines.append(f"| {verdict} | {count} | {' | '.join(cells)} |")
    return lines


def write_model(model: Model, records: Sequence[Record]) -> None:
    """Write the table of the package: weights are per unit of a feature."""
    counts = Counter(name for record in records for name in {finding["name"] for finding in record["findings"]})
    features = {}
    for place, name in enumerate(NAMES):
        weights = model.weights[place] / model.scales[place]
        features[name] = {
            "mean": _round(model.means[place]),
            "low": _round(model.lows[place]),
            "high": _round(model.highs[place]),
            "weights": {outcome: _round(weight) for outcome, weight in zip(OUTCOMES, weights, strict=True)},
        }
    table = {
        "runs": len(records),
        "ridge": model.ridge,
        "findings": sorted(name for name, count in counts.items() if count >= FEW),
        "intercepts": {outcome: _round(value) for outcome, value in zip(OUTCOMES, model.weights[-1], strict=True)},
        "features": features,
    }
    TABLE.write_text(json.dumps(table, indent=1) + "\n")


def _softmax(logits: Array) -> Array:
    parts = np.exp(logits - logits.max(axis=1, keepdims=True))
    return parts / parts.sum(axis=1, keepdims=True)


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
