"""Compares runs: differing keys, scores and metrics. Runs that differ only in seed share a group."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ippo_cli.catalog.entries import RunEntry
from ippo_cli.config.leaves import iter_leaves
from ippo_cli.sweeps.summary import CONFIDENCE, SEED_KEY, MeanInterval, mean_interval

LABELS = frozenset({SEED_KEY, "name", "output_dir", "resume", "mode", "max_iterations_this_run"})
"""Keys that do not change what a run learns, or that distinguish runs of one group."""
AGENT_PREFIX = "task.agents."
MAIN_METRICS = (
    "eval/*/score",
    "*/score/mean",
    "*/policy/entropy",
    "*/policy/approx_kl",
    "*/kl/reference",
    "*/value/explained_variance",
    "*/rollout/response_length",
    "*/rollout/truncated_fraction",
)
SCORE_METRICS = ("eval/*", "*/score/mean", "*/score/part/*")  # metrics of which more is better


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs of one configuration, with different seeds."""

    label: str
    entries: tuple[RunEntry, ...]  # those that are done, or all if none is; of equal seeds the newest

    def mean_score(self, name: str) -> MeanInterval | None:
        """The mean over seeds of the held-out score `first`, `best` or `last`."""
        return mean_interval([value for run in self.entries if (value := getattr(run, name)) is not None])


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A metric in every group: mean over seeds of the last value, and of the best one if more is better."""

    name: str
    last: tuple[MeanInterval | None, ...]
    best: tuple[MeanInterval | None, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Groups of runs; `differences` has the values of a key in every group."""

    groups: tuple[RunGroup, ...]
    differences: tuple[tuple[str, tuple[str, ...]], ...]
    metrics: tuple[MetricRow, ...]


def compare_runs(entries: Sequence[RunEntry], patterns: Sequence[str] = MAIN_METRICS) -> Comparison:
    """Group runs by configuration and compare the groups. `patterns`: of the metrics."""
    leaves = [_configuration(entry) for entry in entries]
    by_configuration: dict[str, list[int]] = {}
    for place, values in enumerate(leaves):
        by_configuration.setdefault(json.dumps(values, sort_keys=True), []).append(place)
    places = list(by_configuration.values())
    groups = tuple(
        RunGroup(_group_label(number), _distinct_seeds([entries[place] for place in members]))
        for number, members in enumerate(places)
    )
    return Comparison(
        groups,
        _differences([leaves[members[0]] for members in places]),
        tuple(_metric_rows(groups, patterns)),
    )


def _configuration(entry: RunEntry) -> dict[str, str]:
    """Values of a run's configuration as text, without labels."""
    return {key: _value_text(value) for key, value in iter_leaves(entry.record.config) if key not in LABELS}


def _value_text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _group_label(number: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    letters = chr(ord("A") + number % 26)
    return letters if number < 26 else _group_label(number // 26 - 1) + letters


def _distinct_seeds(entries: Sequence[RunEntry]) -> tuple[RunEntry, ...]:
    """One run per seed, the newest that is done: a repeated run is not an independent sample.

    Runs that are not done count only if none is: their last score is of an earlier iteration.
    """
    done = [entry for entry in entries if entry.state == "done"] or list(entries)
    by_seed: dict[str, RunEntry] = {}
    for entry in sorted(done, key=lambda entry: entry.started):
        by_seed[repr(entry.record.config.get(SEED_KEY))] = entry
    return tuple(by_seed.values())


def _differences(configurations: Sequence[dict[str, str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Keys with different values. An agent's key is left out if its group's key differs in the same way."""
    keys = dict.fromkeys(key for values in configurations for key in values)
    found = {key: tuple(values.get(key, "-") for values in configurations) for key in keys}
    found = {key: values for key, values in found.items() if len(set(values)) > 1}
    return tuple(
        (key, values)
        for key, values in found.items()
        if not key.startswith(AGENT_PREFIX) or found.get(key.removeprefix(AGENT_PREFIX).partition(".")[2]) != values
    )


def _metric_rows(groups: Sequence[RunGroup], patterns: Sequence[str]) -> list[MetricRow]:
    columns = [[_metric_values(run, patterns) for run in group.entries] for group in groups]
    names = dict.fromkeys(name for group in columns for run in group for name in run)
    return [
        MetricRow(
            name,
            tuple(mean_interval([run[name][-1] for run in group if name in run]) for group in columns),
            tuple(
                mean_interval([max(run[name]) for run in group if name in run]) if _is_score(name) else None
                for group in columns
            ),
        )
        for name in names
    ]


def _metric_values(entry: RunEntry, patterns: Sequence[str]) -> dict[str, list[float]]:
    """The finite values of the run's metrics that fit a pattern."""
    found: dict[str, list[float]] = {}
    for row in entry.record.metrics:
        for name, value in row.items():
            if isinstance(value, int | float) and math.isfinite(value) and any(fnmatchcase(name, p) for p in patterns):
                found.setdefault(name, []).append(float(value))
    return found


def _is_score(name: str) -> bool:
    is_length = name.endswith(("_length", "_fraction", "/turns"))
    return not is_length and any(fnmatchcase(name, pattern) for pattern in SCORE_METRICS)


def to_json_data(comparison: Comparison) -> dict[str, Any]:
    """The comparison for `json.dumps`."""
    return {
        "interval": f"t, {CONFIDENCE:.0%}",
        "groups": [
            {
                "label": group.label,
                "runs": [entry.to_json_data() for entry in group.entries],
                "seeds": [entry.record.config.get(SEED_KEY) for entry in group.entries],
                **{name: _mean_data(group.mean_score(name)) for name in ("first", "best", "last")},
            }
            for group in comparison.groups
        ],
        "differences": {key: list(values) for key, values in comparison.differences},
        "metrics": {
            row.name: {"last": [_mean_data(mean) for mean in row.last], "best": [_mean_data(mean) for mean in row.best]}
            for row in comparison.metrics
        },
    }


def _mean_data(mean: MeanInterval | None) -> dict[str, float | int | None] | None:
    return None if mean is None else {"n": mean.count, "mean": mean.mean, "low": mean.low, "high": mean.high}
