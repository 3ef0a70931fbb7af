"""The picture of curves: one panel per metric that the runs have."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from synthetic import write_run

from ippo_cli.report.picture import _agent_panels, _held_out_panel, can_draw, draw_runs
from ippo_cli.runs.records import RunRecord


def test_panels_have_a_curve_per_agent(tmp_path: Path) -> None:
    runs = [RunRecord(write_run(tmp_path / "a", iterations=20, files=1, episodes_per_file=1))]
    panels = dict(_agent_panels(runs))
    assert list(panels) == ["training score", "entropy", "approx. KL", "explained variance", "response length"]
    assert [label for label, *_ in panels["entropy"]] == ["solver", "checker"]
    assert [label for label, *_ in _held_out_panel(runs)[1]] == ["sampled/score", "greedy/score"]


def test_seeds_are_means_with_intervals(tmp_path: Path) -> None:
    runs = [
        RunRecord(write_run(tmp_path / str(seed), iterations=20, files=1, episodes_per_file=1, seed=seed))
        for seed in (1, 2)
    ]
    [(label, _, _, points), *_] = dict(_agent_panels(runs))["entropy"]
    assert label == "solver"
    at, mean, low, high = points[3]
    values = [run.metrics[4]["solver/policy/entropy"] for run in runs]
    assert (at, mean) == (4, pytest.approx(sum(values) / 2))
    assert low is not None
    assert high is not None
    assert low < mean < high


def test_runs_that_are_not_done_and_repeated_seeds_are_in_no_mean(tmp_path: Path) -> None:
    seeds = {"a": (1, "done"), "b": (2, "failed"), "c": (1, "done")}
    runs = [
        RunRecord(write_run(tmp_path / name, iterations=20, files=1, episodes_per_file=1, seed=seed, state=state))
        for name, (seed, state) in seeds.items()
    ]
    [(_, _, _, points), *_] = dict(_agent_panels(runs))["entropy"]
    assert points[3] == (4, runs[2].metrics[4]["solver/policy/entropy"], None, None)


@pytest.mark.skipif(not can_draw(), reason="matplotlib is not installed")
def test_picture_is_written(tmp_path: Path) -> None:
    runs = [RunRecord(write_run(tmp_path / "a", iterations=20, files=1, episodes_per_file=1))]
    draw_runs(runs, tmp_path / "a.png", "a title")
    header = (tmp_path / "a.png").read_bytes()[:24]
    width, height = struct.unpack(">II", header[16:24])
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert width > 1000
    assert height > 500


@pytest.mark.skipif(not can_draw(), reason="matplotlib is not installed")
def test_run_without_metrics_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"state": "failed"}))
    draw_runs([RunRecord(tmp_path)], tmp_path / "a.png", "nothing yet")
    assert (tmp_path / "a.png").is_file()
