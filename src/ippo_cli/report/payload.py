"""The data of the page: one index, its metrics by column, and compressed chunks of samples and token values."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy

from ippo_cli import __version__
from ippo_cli.report.chunks import encode_bytes, encode_json, total_size
from ippo_cli.report.configurations import (
    SEED_KEY,
    Configuration,
    differing_keys,
    flatten_config,
    group_runs,
    mean_value,
    paired_differences,
    seed_of,
)
from ippo_cli.report.samples import embed_samples
from ippo_cli.reporting.metrics import metric_meaning
from ippo_cli.runs.intervals import MeanInterval, t_quantile
from ippo_cli.runs.missing_parts import find_missing_parts
from ippo_cli.runs.records import RunRecord

MAX_BYTES = 30_000_000  # of the page
RESERVED_BYTES = 1_500_000  # for the program of the page, its libraries and the index
T_DEGREES = 100  # degrees of freedom up to which the page has t-quantiles
INDEX = "index"
EPISODES = "episodes"


@dataclass
class Payload:
    """Chunks by name; the page reads `index` first."""

    chunks: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what the page leaves out


def build_payload(runs: Sequence[RunRecord], title: str, max_bytes: int = MAX_BYTES) -> Payload:
    """Encode the data of the runs so that the page has at most `max_bytes`."""
    found = Payload()
    groups = group_runs(runs)
    run_data = [_run_data(run) for run in runs]
    _add_metrics(found, runs, run_data)
    samples = embed_samples(runs, max_bytes - RESERVED_BYTES - total_size(found.chunks.values()))
    found.notes += samples.notes
    found.chunks |= samples.chunks
    found.chunks[EPISODES] = encode_json(samples.index.to_data())
    index = {
        "version": __version__,
        "title": title,
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "notes": found.notes,
        "runs": run_data,
        "configurations": [_configuration_data(runs, group) for group in groups],
        "differences": [asdict(difference) for difference in paired_differences(runs, groups)],
        "settings": _settings_table([flatten_config(run.config) for run in runs]),
        "environment": _settings_table([flatten_config(run.environment) for run in runs]),
        "files": samples.files,
        "meanings": _meanings(run_data),
        "t_quantiles": [round(t_quantile(degrees), 4) for degrees in range(1, T_DEGREES + 1)],
    }
    found.chunks[INDEX] = encode_json(index)
    return found


def run_names(runs: Sequence[RunRecord]) -> list[str]:
    """Names of the runs: the folder's, with its parents as far as needed to tell runs apart."""
    paths = [run.folder.absolute() for run in runs]
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(set(paths)):
        depth += 1
    return ["/".join(path.parts[-depth:]) for path in paths]


def _run_data(run: RunRecord) -> dict[str, Any]:
    state = run.state
    iterations = state.get("warning_iterations") or {}
    return {
        "name": "",
        "folder": _display(run.folder),
        "state": run.status,
        "error": state.get("error"),
        "wall_seconds": state.get("wall_seconds"),
        "iterations": state.get("iterations") or 0,
        "planned_iterations": run.config.get("num_iterations"),
        "seed": seed_of(run),
        "task": run.config_group("task").get("kind"),
        "agents": run.agents,
        "primary_metric": run.primary_metric,
        "evaluation": state.get("evaluation") or {},
        "warnings": [
            {"rule": rule, "text": str(text), "iteration": iterations.get(rule)}
            for rule, text in (state.get("warnings") or {}).items()
        ],
        "commands": list(run.commands),
        "overrides": list(run.overrides),
        "job_overrides": _job_overrides(run),
    }


def _job_overrides(run: RunRecord) -> list[str]:
    """The overrides of a job of a sweep, which the command of the sweep does not show; empty for a single run."""
    is_job = any({"-m", "--multirun"} & {*command.split()} for command in run.commands)
    return [text for text in run.overrides if not text.startswith("hydra.searchpath=")] if is_job else []


def _display(path: Path) -> str:
    """The path from the working directory if that is shorter to read."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _add_metrics(found: Payload, runs: Sequence[RunRecord], run_data: Sequence[dict[str, Any]]) -> None:
    """Add a chunk of metrics for each run, and its header to the data of the run."""
    limit = points_per_curve([run.metrics for run in runs])
    reduced = 0
    for number, (run, data, name) in enumerate(zip(runs, run_data, run_names(runs), strict=True)):
        columns = encode_metrics(run.metrics, limit)
        reduced += columns.is_reduced
        found.chunks[f"metrics-{number}"] = columns.chunk
        data["metrics"] = columns.header | {"chunk": f"metrics-{number}"}
        data["phase_seconds"] = phase_seconds(run.metrics)
        data["name"] = name
        data["logged_iterations"] = sum(row["iteration"] > 0 for row in run.metrics)
        found.notes += [f"Run {name} is incomplete: {text}." for text in find_missing_parts(run)]
    if reduced:
        found.notes.append(
            f"Curves of {reduced} of {len(runs)} runs have at most {limit} points: the extremes of each interval of "
            "iterations. metrics.jsonl has all."
        )


def phase_seconds(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Total seconds of each phase over the iterations; curves may have too few points to add them up."""
    totals: dict[str, float] = {}
    for row in rows:
        for name, value in row.items() if "time/iteration" in row else ():
            if name.startswith("time/") and math.isfinite(value):
                phase = name.removeprefix("time/")
                totals[phase] = totals.get(phase, 0.0) + value
    return totals


def _configuration_data(runs: Sequence[RunRecord], group: Configuration) -> dict[str, Any]:
    """A configuration with the means of all numbers of its evaluations, by metric and evaluation."""
    evaluations = [runs[place].state.get("evaluation") or {} for place in group.counted]
    names = dict.fromkeys(
        name for known in evaluations for entry in known.values() for name in entry if name not in ("iteration",)
    )
    scores = {
        name: {which: _mean_data(mean_value(runs, group, which, name)) for which in ("first", "last", "best")}
        for name in names
    }
    return asdict(group) | {"scores": scores}


def _mean_data(mean: MeanInterval | None) -> dict[str, Any] | None:
    return None if mean is None else asdict(mean)


def _settings_table(flats: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of key and values; a key with one value for all runs has that alone. The seed is no difference."""
    keys = dict.fromkeys(key for flat in flats for key in flat)
    differing = set(differing_keys(flats))
    return [
        {"key": key, "values": [flat.get(key) for flat in flats], "differs": True, "is_seed": key == SEED_KEY}
        if key in differing
        else {"key": key, "values": [flats[0].get(key)], "differs": False}
        for key in keys
    ]


def _meanings(run_data: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    names = dict.fromkeys(name for data in run_data for name in data["metrics"]["names"])
    return {name: meaning for name in names if (meaning := metric_meaning(name)) is not None}


MAX_CELLS = 6_000_000  # numbers of all metrics of all runs; longer curves keep the extremes of each interval
MIN_POINTS = 2000  # of a curve
MANTISSA_BITS = 16  # of 23; the others are rounded away: five significant digits remain, and columns compress

Curve = tuple[numpy.ndarray, numpy.ndarray]
"""Iterations and finite values."""


@dataclass(frozen=True, slots=True)
class MetricColumns:
    """Metrics of one run: `header` says how to read `chunk`."""

    header: dict[str, Any]
    chunk: str
    is_reduced: bool  # whether some curves have fewer points than rows


def points_per_curve(rows: Sequence[Sequence[Mapping[str, float]]]) -> int:
    """The number of points per curve for the rows of each run, so that all runs together have `MAX_CELLS` numbers."""
    curves = sum(len({name for row in part[:1] + part[-1:] for name in row}) for part in map(list, rows))
    return max(MIN_POINTS, MAX_CELLS // max(curves, 1))


def encode_metrics(rows: Sequence[Mapping[str, float]], max_points: int) -> MetricColumns:
    """Encode the rows of `metrics.jsonl`.

    The chunk has the iterations of each grid (int32), then the values of each metric (float32), little-endian, as four
    planes of bytes. Metrics that were logged at the same iterations share a grid.
    """
    grids: dict[bytes, int] = {}
    columns: list[numpy.ndarray] = []
    entries: list[tuple[str, int]] = []
    reduced = False
    for name, curve in _curves(rows).items():
        reduced = reduced or len(curve[0]) > max_points
        at, values = reduce_curve(curve, max_points)
        grid = grids.setdefault(at.astype("<i4").tobytes(), len(grids))
        entries.append((name, grid))
        columns.append(_round_mantissa(values.astype("<f4")))
    data = b"".join([*grids, *(column.tobytes() for column in columns)])
    header = {
        "rows": len(rows),
        "grids": [len(grid) // 4 for grid in grids],
        "names": [name for name, _ in entries],
        "grid_of": [grid for _, grid in entries],
    }
    return MetricColumns(header, encode_bytes(_to_planes(data)), reduced)


def reduce_curve(curve: Curve, max_points: int) -> Curve:
    """Keep the first and last value, and the smallest and largest of each interval of rows between them.

    These two have the places of the first and the last row of their interval, in the order in which they occur, so that
    curves that share iterations still do.
    """
    at, values = curve
    if len(at) <= max_points:
        return curve
    edges = numpy.linspace(1, len(at) - 1, max(max_points // 2, 2)).astype(int).tolist()
    places, sources = [0], [0]
    for start, end in pairwise(edges):
        extremes = (start + int(values[start:end].argmin()), start + int(values[start:end].argmax()))
        places += [start, end - 1]
        sources += [min(extremes), max(extremes)]
    return at[[*places, len(at) - 1]], values[[*sources, len(at) - 1]]


def _curves(rows: Sequence[Mapping[str, float]]) -> dict[str, Curve]:
    found: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        iteration = row["iteration"]
        for name, value in row.items():
            if name != "iteration" and isinstance(value, int | float) and math.isfinite(value):
                at, values = found.setdefault(name, ([], []))
                at.append(iteration)
                values.append(value)
    return {name: (numpy.array(at), numpy.array(values)) for name, (at, values) in found.items()}


def _round_mantissa(values: numpy.ndarray) -> numpy.ndarray:
    lost = 23 - MANTISSA_BITS
    bits = values.view("<u4")
    return (((bits + (1 << (lost - 1))) >> lost) << lost).astype("<u4")


def _to_planes(data: bytes) -> bytes:
    """First all lowest bytes of the numbers, then the next ones: neighbours are similar in each plane, and compress."""
    return numpy.frombuffer(data, dtype=numpy.uint8).reshape(-1, 4).T.tobytes()
