"""Renders the results of an evaluation as JSON, or as a CSV, Markdown or LaTeX table with a row per agent and part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ippo_cli.config.tables import FORMATTERS, TEAM, Rows, format_number, split_metric_name

MODES = ("sampled", "greedy")


def render_report(path: Path, output_format: str) -> str:
    """Render a file of results or a folder of cross-play, in a format of `FORMATTERS` or as JSON."""
    file = path / "crossplay.json" if path.is_dir() else path
    text = file.read_text()
    return text if output_format == "json" else FORMATTERS[output_format](report_rows(json.loads(text)))


def report_rows(record: Mapping[str, Any]) -> Rows:
    """The table of scores, differences of a comparison, cross-play, attribution, exploitability or critics."""
    if "tables" in record:
        return _pairing_rows(record)
    if "differences" in record:
        return _difference_rows(record)
    if "exploitability" in record:
        return _exploitability_rows(record)
    if "credit" in record:
        return _credit_rows(record)
    if "attribution" in record:
        return _attribution_rows(record)
    if "critic" in record:
        return _critic_rows(record)
    return _score_rows(record)


def _score_rows(record: Mapping[str, Any]) -> Rows:
    """One row per agent and part, with value and 95 % interval in each mode."""
    agents, intervals = list(record["models"]), record["intervals"]
    modes = [mode for mode in MODES if mode in record["episodes"]]
    parts = {}
    for key in record:
        mode, _, name = key.partition("/")
        if mode in modes:
            parts.setdefault(split_metric_name(name, agents), {})[mode] = key
    heading = ["agent", "part", *(f"{mode}{suffix}" for mode in modes for suffix in ("", "_low", "_high"))]
    rows = [heading]
    order = {agent: place for place, agent in enumerate([TEAM, *agents])}
    for (agent, part), keys in sorted(parts.items(), key=lambda item: order[item[0][0]]):
        cells: list[str] = []
        for mode in modes:
            interval = intervals.get(keys.get(mode), {})
            cells += [
                format_number(record.get(keys.get(mode))),
                format_number(interval.get("low")),
                format_number(interval.get("high")),
            ]
        rows.append([agent, part, *cells])
    return rows


def _difference_rows(record: Mapping[str, Any]) -> Rows:
    agents = list(record["one"]["models"])
    rows = [["mode", "agent", "part", "one", "other", "difference", "low", "high", "p"]]
    for key, row in record["differences"].items():
        mode, _, name = key.partition("/")
        numbers = [format_number(row[column]) for column in ("one", "other", "difference", "low", "high", "p")]
        rows.append([mode, *split_metric_name(name, agents), *numbers])
    return rows


def _pairing_rows(record: Mapping[str, Any]) -> Rows:
    names = [origin["name"] for origin in record["origins"]]
    rows = [["metric", "agent", "agent_from", "others_from", "score", "standard_error"]]
    for table in record["tables"]:
        for row, origin in enumerate(names):
            for column, partner in enumerate(names):
                cell = (table[key][row][column] for key in ("scores", "standard_errors"))
                rows.append([table["metric"], table["agent"], origin, partner, *map(format_number, cell)])
    return rows


def _attribution_rows(record: Mapping[str, Any]) -> Rows:
    columns = ("shapley", "low", "high", "alone", "removed")
    rows = [["metric", "agent", *columns]]
    for found in record["attribution"]:
        for agent, share in found["shares"].items():
            rows.append([found["metric"], agent, *(format_number(share[column]) for column in columns)])
    return rows


def _exploitability_rows(record: Mapping[str, Any]) -> Rows:
    """One row per agent, one of the sum, NashConv, and one per player with an Elo rating, in the column `score`."""
    found = record["exploitability"]
    rows = [["agent", "score", "response", "gain", "low", "high"]]
    for agent, own in found["gains"].items():
        rows.append([agent, *(format_number(own[column]) for column in ("value", "response", "gain", "low", "high"))])
    total = (found["nash_conv"], found["low"], found["high"])
    ratings = [[f"elo/{player}", format_number(elo), "", "", "", ""] for player, elo in record["ratings"].items()]
    return [*rows, ["nash_conv", "", "", *map(format_number, total)], *ratings]


def _credit_rows(record: Mapping[str, Any]) -> Rows:
    """One row per agent, kind of credit and number."""
    rows = [["agent", "kind", "turns", "part", "value", "low", "high"]]
    for agent, kinds in record["agents"].items():
        for kind, numbers in kinds.items():
            for name, estimate in numbers.items():
                if name != "turns":
                    cells = [format_number(estimate[key]) for key in ("value", "low", "high")]
                    rows.append([agent, kind, str(numbers["turns"]), name, *cells])
    return rows


def _critic_rows(record: Mapping[str, Any]) -> Rows:
    """One row per agent, group of states and number."""
    rows = [["agent", "states", "part", "value", "low", "high"]]
    for agent, report in record["agents"].items():
        for group, numbers in report["groups"].items():
            where = group.removeprefix(agent).removeprefix(", ") or "all"
            for name, estimate in numbers.items():
                if name != "states":
                    cells = [format_number(estimate[key]) for key in ("value", "low", "high")]
                    rows.append([agent, where, name, *cells])
    return rows
