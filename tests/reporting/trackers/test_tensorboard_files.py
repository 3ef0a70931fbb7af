"""TensorBoard files as TensorBoard reads them: scalars, pages of charts, tables of samples, histograms."""

from __future__ import annotations

import math
import re
from html import unescape
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.util import tensor_util

from ippo_cli.reporting.trackers.tensorboard_files import TensorBoardTracker, chart_layout

TURN = {"agent": "low", "step": 0, "observation": "cab", "response": "abc", "cut": False, "score": 1.0}
NASTY = "<script>alert(1)</script> | a_b_ *c* `d` [e](http://f) ![g](h) \\| # i\n- \x1b[31m é 中"
ROW = {
    "iteration": 1.0,
    "low/score/mean": 0.5,
    "high/score/mean": 0.25,
    "low/value/explained_variance": 0.1,
    "shared/policy/entropy": 1.0,
    "low/policy/entropy": 1.0,
    "time/iteration": 1.0,
}


def read_events(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder / "tb"), size_guidance={"tensors": 0, "histograms": 0})
    events.Reload()
    return events


def read_layout(events: EventAccumulator) -> dict[str, dict[str, list[str]]]:
    """The pages of charts: patterns of tags by title."""
    [event] = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout()
    layout.ParseFromString(tensor_util.make_ndarray(event.tensor_proto).item())
    return {
        category.title: {chart.title: list(chart.multiline.tag) for chart in category.chart}
        for category in layout.category
    }


def test_each_agent_has_a_page_and_scores_have_one(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path)
    tracker.log({"iteration": 0.0, "eval/sampled/score": 0.5}, 0)
    for iteration in (1, 2):
        tracker.log(ROW, iteration)
    tracker.finish("done")
    events = read_events(tmp_path)
    pages = read_layout(events)
    assert list(pages) == ["scores", "agent high", "agent low", "weights shared"]
    assert pages["scores"]["training"] == ["^high/score/mean$", "^low/score/mean$"]
    assert pages["agent low"] == pages["agent low"] | {
        "score": ["^low/score/mean$"],
        "entropy": ["^low/policy/entropy$"],
        "explained variance": ["^low/value/explained_variance$"],
    }
    assert pages["weights shared"] == {"entropy": ["^shared/policy/entropy$"]}
    tags = events.Tags()["scalars"]
    for page in pages["scores"], pages["agent low"]:
        assert any(re.search(pattern, tag) for pattern in page[next(iter(page))] for tag in tags)


def test_layout_of_many_agents_matches_their_metrics() -> None:
    names = [f"agent{number}/score/mean" for number in range(12)]
    layout = chart_layout(names)
    assert len(layout) == 13
    assert len(layout["scores"]["training"][1]) == 12
    assert not any(re.search(layout["agent agent1"]["score"][1][0], name) for name in names if "agent1/" not in name)


def test_samples_are_tables_of_escaped_text(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path)
    turns = [TURN, TURN | {"agent": "high", "response": NASTY, "score": None}]
    tracker.log_samples("train_00000003", [{"index": 7, "turns": turns}])
    tracker.finish("done")
    [event] = read_events(tmp_path).Tensors("samples/train/text_summary")
    assert event.step == 3
    html = markdown_to_safe_html(tensor_util.make_ndarray(event.tensor_proto).item())
    assert re.findall("<([a-z]+)", html) == ["table", "thead", "tr", *["th"] * 7, "tbody", *["tr", *["td"] * 7] * 2]
    cells = [unescape(cell) for cell in re.findall("<td>(.*?)</td>", html, re.DOTALL)]
    assert cells[:7] == ["7", "low", "0", "cab", "abc", "1.0", "False"]
    assert cells[11] == NASTY.replace("\n", "\\n").replace("\x1b", "\\x1b")


def test_long_samples_are_truncated(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path)
    tracker.log_samples("eval_00000003", [{"index": 7, "turns": [TURN | {"response": "x" * 10_000_000}] * 100}])
    tracker.finish("done")
    [event] = read_events(tmp_path).Tensors("samples/eval/text_summary")
    text = tensor_util.make_ndarray(event.tensor_proto).item().decode()
    assert len(text) < 40_000
    assert text.endswith("36 more turns in `samples/` of the run's folder")


def test_distributions_are_histograms(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path)
    values = {"low/distribution/score": [1.0, 2.0, math.nan], "high/distribution/score": []}
    tracker.log_distributions(2, values)
    tracker.finish("done")
    events = read_events(tmp_path)
    assert events.Tags()["histograms"] == ["low/distribution/score"]
    [event] = events.Histograms("low/distribution/score")
    assert (event.step, event.histogram_value.num) == (2, 2)
    assert event.histogram_value.sum == pytest.approx(3.0)
