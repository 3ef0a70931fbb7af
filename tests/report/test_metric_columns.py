"""Columns of metrics: exact grids, rounded values, and curves with fewer points."""

from __future__ import annotations

import base64
import gzip
import math
from typing import Any

import numpy
import pytest

from ippo_cli.report.payload import MetricColumns, encode_metrics, points_per_curve, reduce_curve


def decode(columns: MetricColumns) -> dict[str, tuple[list[int], list[float]]]:
    """Read a chunk as the page does."""
    header: dict[str, Any] = columns.header
    planes = numpy.frombuffer(gzip.decompress(base64.b64decode(columns.chunk)), dtype=numpy.uint8)
    data = planes.reshape(4, -1).T.tobytes()
    grids, start = [], 0
    for length in header["grids"]:
        grids.append(numpy.frombuffer(data, "<i4", length, start).tolist())
        start += 4 * length
    found = {}
    for name, grid in zip(header["names"], header["grid_of"], strict=True):
        found[name] = (grids[grid], numpy.frombuffer(data, "<f4", len(grids[grid]), start).tolist())
        start += 4 * len(grids[grid])
    assert start == len(data)
    return found


def test_values_are_read_back_with_five_digits() -> None:
    values = [0.123456, -98765.4, 2.5e-14, 3.0]
    rows = [{"iteration": place + 1, "low/score/mean": value} for place, value in enumerate(values)]
    at, found = decode(encode_metrics(rows, 100))["low/score/mean"]
    assert at == [1, 2, 3, 4]
    assert found == pytest.approx(values, rel=1e-5)


def test_unknown_values_have_no_point_and_equal_grids_are_shared() -> None:
    rows = [
        {"iteration": 0, "eval/s": 1.0},
        {"iteration": 1, "a": 1.0, "b": 2.0},
        {"iteration": 2, "a": math.nan, "b": 1},
    ]
    columns = encode_metrics([*rows, {"iteration": 3, "a": 4.0, "b": 5.0}], 100)
    found = decode(columns)
    assert found["a"] == ([1, 3], [1.0, 4.0])
    assert found["b"] == ([1, 2, 3], [2.0, 1.0, 5.0])
    assert columns.header["grids"] == [1, 2, 3]
    assert not columns.is_reduced


def test_a_run_without_rows_has_no_columns() -> None:
    assert decode(encode_metrics([], 100)) == {}


def test_long_curves_keep_their_extremes() -> None:
    rows = [{"iteration": at, "a": float(at == 7_123) - float(at == 501), "b": 0.0} for at in range(10_000)]
    columns = encode_metrics(rows, 200)
    at, values = decode(columns)["a"]
    assert columns.is_reduced
    assert len(at) <= 202
    assert (at[0], at[-1]) == (0, 9999)
    assert abs(at[values.index(1.0)] - 7_123) <= 101
    assert abs(at[values.index(-1.0)] - 501) <= 101
    assert len(columns.header["grids"]) == 1, "curves that share iterations still do"


def test_short_curves_are_unchanged() -> None:
    curve = (numpy.arange(10), numpy.arange(10.0))
    assert reduce_curve(curve, 10) is curve


def test_points_per_curve_is_shared_by_all_curves() -> None:
    row = {f"metric{number}": 0.0 for number in range(400)}
    assert points_per_curve([[row], [row]]) == 7_500
    assert points_per_curve([]) > 1e6
