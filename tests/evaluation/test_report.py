"""Reports of evaluations as tables with a row per agent and part."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from ippo_cli.evaluation.report import render_report, report_rows

SCORES: dict[str, Any] = {
    "models": {"low": {}, "high": {}},
    "episodes": {"sampled": 8, "greedy": 8},
    "score": 0.5,
    "sampled/score": 0.5,
    "sampled/high/score": 0.25,
    "greedy/score": 0.75,
    "greedy/low/truncated_fraction": None,
    "intervals": {"sampled/score": {"low": 0.25, "high": 0.75, "by": "t"}},
}


def write(folder: Path, record: dict[str, Any]) -> Path:
    file = folder / "scores.json"
    file.write_text(json.dumps(record))
    return file


def test_score_rows() -> None:
    heading, *rows = report_rows(SCORES)
    assert heading[:5] == ["agent", "part", "sampled", "sampled_low", "sampled_high"]
    assert rows == [
        ["team", "score", "0.5", "0.25", "0.75", "0.75", "", ""],
        ["low", "truncated_fraction", "", "", "", "", "", ""],
        ["high", "score", "0.25", "", "", "", "", ""],
    ]


def test_all_report_formats(tmp_path: Path) -> None:
    file = write(tmp_path, SCORES)
    assert json.loads(render_report(file, "json")) == SCORES
    rows = list(csv.reader(render_report(file, "csv").splitlines()))
    assert rows == report_rows(SCORES)
    lines = render_report(file, "markdown").splitlines()
    assert lines[0].startswith("| agent | part | sampled |")
    assert len({line.count("|") for line in lines}) == 1
    latex = render_report(file, "latex")
    assert r"low & truncated\_fraction & " in latex
    assert latex.startswith(r"\begin{tabular}{llrrrrrr}")


def test_comparison_and_cross_play_rows(tmp_path: Path) -> None:
    row = {"one": 0.5, "other": 0.25, "difference": 0.25, "low": 0.0, "high": 0.5, "p": 0.03, "rows": 8}
    compared = {"one": {"models": {"low": {}}}, "differences": {"sampled/low/score": row}}
    assert report_rows(compared)[1] == ["sampled", "low", "score", "0.5", "0.25", "0.25", "0", "0.5", "0.03"]
    cells = [[0.5, 0.25], [0.75, 1.0]]
    table = {"metric": "sampled/score", "agent": "low", "scores": cells, "standard_errors": cells}
    (tmp_path / "crossplay.json").write_text(json.dumps({"origins": [{"name": "a"}, {"name": "b"}], "tables": [table]}))
    lines = render_report(tmp_path, "csv").splitlines()
    assert lines[2] == "sampled/score,low,a,b,0.25,0.25"
    assert len(lines) == 5


def test_critic_rows() -> None:
    bias = {"value": 0.5, "low": 0.25, "high": None}
    groups = {"low": {"states": 3, "bias": bias}, "low, token 1": {"states": 2, "bias": bias}}
    record = {"critic": {}, "models": {"low": {}}, "agents": {"low": {"groups": groups}}}
    assert report_rows(record)[1:] == [
        ["low", "all", "bias", "0.5", "0.25", ""],
        ["low", "token 1", "bias", "0.5", "0.25", ""],
    ]


def test_credit_report_has_a_row_per_agent_kind_and_number() -> None:
    estimate = {"value": 0.5, "low": 0.25, "high": None}
    kinds = {"none": {"turns": 3, "rank_correlation": estimate}}
    rows = report_rows({"credit": {}, "agents": {"sender": kinds}})
    assert rows == [
        ["agent", "kind", "turns", "part", "value", "low", "high"],
        ["sender", "none", "3", "rank_correlation", "0.5", "0.25", ""],
    ]
