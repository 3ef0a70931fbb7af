"""Judge the forecast of collapse on tasks that no fit has seen: the tables of `docs/forecast.md`."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from forecast_fit import (
    RULES,
    SINGLE,
    Array,
    Data,
    auc,
    brier,
    build_data,
    calibration_error,
    fit_with_chosen_ridge,
    predict_all,
    write_table,
)
from learning import write_between

from ippo_cli.forecast.features import FEATURES, MIN_ROWS
from ippo_cli.forecast.forecast import TABLE, forecast_collapse, read_weights

PAGE = Path(__file__).resolve().parents[2] / "docs" / "forecast.md"
RECORDED = PAGE.parents[1] / "tests" / "diagnosis" / "recorded"
RESAMPLES = 1000


def main(command: str, records: Sequence[Mapping[str, Any]]) -> int:
    data = build_data(records)
    print(f"{len(data.labels)} prefixes of {len(set(data.runs.tolist()))} runs, {data.labels.mean():.1%} before a fall")
    if command == "fit":
        model = fit_with_chosen_ridge(data)
        write_table(model, data, records)
    text = judge(data, records)
    if command == "judge":
        write_between(PAGE, text, ("<!-- judgement -->", "<!-- end of judgement -->"))
        write_between(PAGE, weight_table(), ("<!-- weights -->", "<!-- end of weights -->"))
    print(text)
    return 0


def judge(data: Data, records: Sequence[Mapping[str, Any]]) -> str:
    """The tables of the page."""
    found, chosen = predict_all(data)
    draws = _resamples(data.runs)
    labels = data.labels
    lines = [
        f"{len(labels)} prefixes of {len(set(data.runs.tolist()))} runs (of {len(records)}), {int(labels.sum())} "
        f"({labels.mean():.1%}) before a fall. Each task family is forecast by a fit to the other "
        f"{len(chosen) - 1}. Intervals: 95 %, bootstrap over runs.",
        "",
        "| on left-out tasks | AUC | Brier score | calibration error |",
        "|---|---|---|---|",
    ]
    for title in ("forecast", "best rule", SINGLE, *RULES, "base rate"):
        chances = found[title]
        cells = [
            _interval(lambda part, c=chances: auc(labels[part], c[part]), draws, len(labels)),
            _interval(lambda part, c=chances: brier(labels[part], c[part]), draws, len(labels)),
            _interval(lambda part, c=chances: calibration_error(labels[part], c[part]), draws, len(labels)),
        ]
        if title == "base rate":
            cells[0] = "0.5"
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines += ["", *_difference_lines(data, found, draws), "", *_family_table(data, found, chosen), ""]
    lines += [*_calibration_table(labels, found["forecast"]), "", *_alarm_table(data, found), "", _recorded_line()]
    return "\n".join(lines)


def _resamples(runs: Array) -> list[Array]:
    """Rows of runs drawn with replacement."""
    source = np.random.default_rng(0)
    names = np.unique(runs)
    rows = {name: np.flatnonzero(runs == name) for name in names.tolist()}
    return [
        np.concatenate([rows[name] for name in source.choice(names, len(names)).tolist()]) for _ in range(RESAMPLES)
    ]


def _interval(measure: Any, draws: Sequence[Array], count: int) -> str:
    low, high = np.nanquantile([measure(part) for part in draws], (0.025, 0.975))
    return f"{measure(np.arange(count)):.3f} ({low:.3f} to {high:.3f})"


def _difference_lines(data: Data, found: Mapping[str, Array], draws: Sequence[Array]) -> list[str]:
    labels, ours, rule = data.labels, found["forecast"], found["best rule"]
    lines = []
    for title, other in (("the rule", rule), ("the single metric", found[SINGLE])):
        gain = _interval(
            lambda part, o=other: auc(labels[part], ours[part]) - auc(labels[part], o[part]), draws, len(labels)
        )
        saved = _interval(
            lambda part, o=other: brier(labels[part], o[part]) - brier(labels[part], ours[part]), draws, len(labels)
        )
        lines.append(
            f"Forecast minus {title} that is best on the fitting tasks: AUC {gain}, Brier score lower by {saved}."
        )
    parts = {
        "runs that are not broken on purpose": data.healthy,
        "evaluations that are not below the best one so far by more than noise": ~data.fallen,
    }
    return [
        *lines,
        *(_subset_line(title, labels[part], ours[part], rule[part]) for title, part in parts.items()),
    ]


def _subset_line(title: str, labels: Array, ours: Array, rule: Array) -> str:
    return (
        f"In {title} ({len(labels)} prefixes, {int(labels.sum())} before a fall) its AUC is {auc(labels, ours):.3f}, "
        f"the rule's {auc(labels, rule):.3f}."
    )


def _family_table(data: Data, found: Mapping[str, Array], chosen: Mapping[str, str]) -> list[str]:
    lines = [
        "| left-out family | prefixes | before a fall | AUC | AUC of the best rule | Brier | best rule | base rate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for family in chosen:
        own = data.families == family
        labels = data.labels[own]
        numbers = [auc(labels, found[title][own]) for title in ("forecast", "best rule")]
        numbers += [brier(labels, found[title][own]) for title in ("forecast", "best rule", "base rate")]
        lines.append(
            f"| {family} | {own.sum()} | {labels.mean():.1%} | "
            + " | ".join(f"{number:.3f}" for number in numbers)
            + " |"
        )
    return lines


def _calibration_table(labels: Array, chances: Array) -> list[str]:
    lines = ["| forecast of left-out tasks | prefixes | mean forecast | frequency of falls |", "|---|---|---|---|"]
    for low, high in ((0, 0.05), (0.05, 0.1), (0.1, 0.2), (0.2, 0.35), (0.35, 0.5), (0.5, 0.7), (0.7, 1.001)):
        part = (chances >= low) & (chances < high)
        if part.any():
            means = f"{chances[part].mean():.3f} | {labels[part].mean():.3f}"
            lines.append(f"| {low:g} to {min(high, 1):g} | {part.sum()} | {means} |")
    return lines


def _alarm_table(data: Data, found: Mapping[str, Array]) -> list[str]:
    """By threshold: how many alarms are right, and how many runs they find."""
    lines = [
        "| warning above, at six iterations of each run | prefixes | right | falls found | falling runs found "
        "| other runs with a warning |",
        "|---|---|---|---|---|---|",
    ]
    chances, labels = found["forecast"], data.labels
    falling = set(data.runs[labels].tolist())
    others = set(data.runs.tolist()) - falling
    for threshold in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
        alarms = chances >= threshold
        warned = set(data.runs[alarms].tolist())
        found_runs = set(data.runs[alarms & labels].tolist())
        right = labels[alarms].mean() if alarms.any() else math.nan
        lines.append(
            f"| {threshold:g} | {alarms.sum()} | {right:.0%} | {alarms[labels].mean():.0%} | "
            f"{len(found_runs)} of {len(falling)} | {len(warned & others)} of {len(others)} |"
        )
    return lines


def _recorded_line() -> str:
    """How many of the runs that test `ippo-doctor`, which no fit has seen, reach the threshold of the warning."""
    threshold, parts = read_weights().threshold, []
    for name in ("healthy", "failing"):
        with gzip.open(RECORDED / f"{name}.json.gz", "rt") as file:
            runs = [run["rows"] for run in json.load(file)]
        ends = [[forecast_collapse(rows[:end]) for end in range(MIN_ROWS, len(rows) + 1)] for rows in runs]
        reached = [any(found.probability >= threshold for found in run if found is not None) for run in ends]
        parts.append(f"{sum(reached)} of {len(reached)} {name} ones")
    names = " and ".join(parts)
    return f"Of the [recorded runs of `ippo-doctor`](doctor.md#recorded-runs), in no fit, {names} have a warning."


def weight_table() -> str:
    """The curves as Markdown, the widest range of log-odds first."""
    table = json.loads(TABLE.read_text())
    meanings = {feature.name: feature.meaning for feature in FEATURES}
    rows = sorted(table["features"].items(), key=lambda row: min(row[1]["log_odds"]) - max(row[1]["log_odds"]))
    lines = ["| feature | meaning | value: log-odds |", "|---|---|---|"]
    for name, row in rows:
        points = ", ".join(f"{knot:.3g}: {odds:+.2f}" for knot, odds in zip(row["knots"], row["log_odds"], strict=True))
        lines.append(f"| `{name}` | {meanings[name]} | {points} |")
    return "\n".join([f"Intercept {table['intercept']:g}; ridge {table['ridge']:g}.", "", *lines])
