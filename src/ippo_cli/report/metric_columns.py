"""Metrics of a run as compressed columns of single precision, each with the iterations at which it was logged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy

from ippo_cli.report.chunks import encode_bytes

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
