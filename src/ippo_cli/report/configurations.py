"""Groups runs by configuration: runs that differ only in the seed are samples of one configuration."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ippo_cli.runs.intervals import MeanInterval, mean_interval
from ippo_cli.runs.records import RunRecord

SEED_KEY = "seed"
# Keys that do not change what is trained, so that runs with other values are still samples of one configuration.
IGNORED_KEYS = ("output_dir", "resume", "mode", "max_iterations_this_run", "debug_faults", "plan", "pilot", "sweep")
IGNORED_GROUPS = ("launch", "tracker", "checkpoint", "hydra", "sweep", "plan", "pilot")
MISSING = "(absent)"
MAX_LABEL_KEYS = 4
SCORES = ("first", "last", "best")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Runs that differ only in the seed; `runs` are positions in the list of runs."""

    label: str
    runs: tuple[int, ...]
    counted: tuple[int, ...]  # runs in means: those that are done, or all if none is; of equal seeds the last one


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Mean difference of the last held-out score, one minus other, over seeds that both configurations have."""

    one: int
    other: int
    seeds: tuple[Any, ...]
    difference: MeanInterval


def flatten_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key; lists and empty mappings are values."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten_config(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def differing_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys that do not have the same value in all flat configurations, in order of appearance."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({_identity(config.get(key, MISSING)) for config in configs}) > 1]


def group_runs(runs: Sequence[RunRecord]) -> list[Configuration]:
    """The configurations of the runs, in order of appearance."""
    flats = [_trained_values(flatten_config(run.config)) for run in runs]
    groups: dict[Any, list[int]] = {}
    for place, flat in enumerate(flats):
        # Without a configuration nothing is known to be equal.
        key = tuple(sorted((name, _identity(value)) for name, value in flat.items())) if runs[place].config else place
        groups.setdefault(key, []).append(place)
    labels = _label_groups(runs, flats, list(groups.values()))
    return [
        Configuration(label, tuple(places), _counted_runs(runs, places))
        for label, places in zip(labels, groups.values(), strict=True)
    ]


def seed_of(run: RunRecord) -> Any:
    """The seed of a run; None if unknown."""
    return run.config.get(SEED_KEY)


def held_out_value(run: RunRecord, which: str, metric: str | None = None) -> float | None:
    """The primary score, or another metric, of the evaluation `first`, `last` or `best`; None if unknown."""
    entry = (run.state.get("evaluation") or {}).get(which) or {}
    value = entry.get("score" if metric is None else metric)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def mean_value(
    runs: Sequence[RunRecord], group: Configuration, which: str, metric: str | None = None
) -> MeanInterval | None:
    """The mean over the counted runs of a configuration, with a 95 % t-interval; None without a value."""
    values = [held_out_value(runs[place], which, metric) for place in group.counted]
    return mean_interval([value for value in values if value is not None])


def paired_differences(runs: Sequence[RunRecord], groups: Sequence[Configuration]) -> list[PairedDifference]:
    """Differences of all pairs of configurations that share a seed and a primary metric."""
    by_seed = [
        {
            json.dumps([seed, runs[place].primary_metric]): value
            for place in group.counted
            if (seed := seed_of(runs[place])) is not None and (value := held_out_value(runs[place], "last")) is not None
        }
        for group in groups
    ]
    found = []
    for one in range(len(groups)):
        for other in range(one + 1, len(groups)):
            shared = [seed for seed in by_seed[one] if seed in by_seed[other]]
            mean = mean_interval([by_seed[one][seed] - by_seed[other][seed] for seed in shared])
            if mean is not None:
                found.append(PairedDifference(one, other, tuple(json.loads(seed)[0] for seed in shared), mean))
    return found


def _trained_values(flat: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flat.items() if key != SEED_KEY and not _is_ignored(key)}


def _is_ignored(key: str) -> bool:
    return key in IGNORED_KEYS or key.partition(".")[0] in IGNORED_GROUPS


def _identity(value: Any) -> str:
    """A text that is equal for equal values; 1 and 1.0 are equal."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, default=str)


def _counted_runs(runs: Sequence[RunRecord], places: Sequence[int]) -> tuple[int, ...]:
    done = [place for place in places if runs[place].status == "done"] or list(places)
    # A repeated run of a seed is no independent sample.
    return tuple({json.dumps(seed_of(runs[place])): place for place in done}.values())


def _label_groups(
    runs: Sequence[RunRecord], flats: Sequence[Mapping[str, Any]], groups: Sequence[Sequence[int]]
) -> list[str]:
    """Short texts that tell the configurations apart: their own arguments, else their values, else their folders."""
    firsts = [places[0] for places in groups]
    if len(groups) == 1:
        return [runs[firsts[0]].folder.name if len(runs) == 1 else "all runs"]
    labels = _argument_labels([runs[place] for place in firsts])
    if len(set(labels)) < len(labels):
        labels = _value_labels([flats[place] for place in firsts])
    uses = Counter(labels)
    return [
        label if uses[label] == 1 else f"{label} {runs[place].folder.name}".strip()
        for label, place in zip(labels, firsts, strict=True)
    ]


def _argument_labels(runs: Sequence[RunRecord]) -> list[str]:
    arguments = [
        [text for text in run.overrides if (key := text.partition("=")[0].lstrip("+~")) != SEED_KEY
         and not _is_ignored(key) and not key.startswith("hydra/")]
        for run in runs
    ]  # fmt: skip
    shared = set.intersection(*map(set, arguments))
    return [" ".join(text for text in own if text not in shared) or "default" for own in arguments]


def _value_labels(flats: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = differing_keys(flats)[:MAX_LABEL_KEYS]
    tails = Counter(key.rpartition(".")[2] for key in keys)
    short = {key: tail if tails[tail := key.rpartition(".")[2]] == 1 else key for key in keys}
    return [" ".join(f"{short[key]}={flat.get(key, MISSING)}" for key in keys) for flat in flats]
