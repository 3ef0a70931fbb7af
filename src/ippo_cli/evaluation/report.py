"""Renders the results of an evaluation as JSON, or as a CSV, Markdown or LaTeX table with a row per agent and part."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

TEAM = "team"  # agent column of metrics that belong to no single agent
MODES = ("sampled", "greedy")
LATEX_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}

Rows = list[list[str]]
"""The heading and the rows of a table."""


def render_report(path: Path, output_format: str) -> str:
    """Render a file of results or a folder of cross-play, in a format of `FORMATTERS` or as JSON."""
    file = path / "crossplay.json" if path.is_dir() else path
    text = file.read_text()
    return text if output_format == "json" else FORMATTERS[output_format](report_rows(json.loads(text)))


def report_rows(record: Mapping[str, Any]) -> Rows:
    """The table of scores, of the differences of a comparison, or of the pairings of cross-play."""
    if "tables" in record:
        return _pairing_rows(record)
    if "differences" in record:
        return _difference_rows(record)
    return _score_rows(record)


def _score_rows(record: Mapping[str, Any]) -> Rows:
    """One row per agent and part, with value and 95 % interval in each mode."""
    agents, intervals = list(record["models"]), record["intervals"]
    modes = [mode for mode in MODES if mode in record["episodes"]]
    parts = {}
    for key in record:
        mode, _, name = key.partition("/")
        if mode in modes:
            parts.setdefault(_split_metric_name(name, agents), {})[mode] = key
    heading = ["agent", "part", *(f"{mode}{suffix}" for mode in modes for suffix in ("", "_low", "_high"))]
    rows = [heading]
    order = {agent: place for place, agent in enumerate([TEAM, *agents])}
    for (agent, part), keys in sorted(parts.items(), key=lambda item: order[item[0][0]]):
        cells: list[str] = []
        for mode in modes:
            interval = intervals.get(keys.get(mode), {})
            cells += [
                _format_number(record.get(keys.get(mode))),
                _format_number(interval.get("low")),
                _format_number(interval.get("high")),
            ]
        rows.append([agent, part, *cells])
    return rows


def _difference_rows(record: Mapping[str, Any]) -> Rows:
    agents = list(record["one"]["models"])
    rows = [["mode", "agent", "part", "one", "other", "difference", "low", "high", "p"]]
    for key, row in record["differences"].items():
        mode, _, name = key.partition("/")
        numbers = [_format_number(row[column]) for column in ("one", "other", "difference", "low", "high", "p")]
        rows.append([mode, *_split_metric_name(name, agents), *numbers])
    return rows


def _pairing_rows(record: Mapping[str, Any]) -> Rows:
    names = [origin["name"] for origin in record["origins"]]
    rows = [["metric", "agent", "agent_from", "others_from", "score", "standard_error"]]
    for table in record["tables"]:
        for row, origin in enumerate(names):
            for column, partner in enumerate(names):
                cell = (table[key][row][column] for key in ("scores", "standard_errors"))
                rows.append([table["metric"], table["agent"], origin, partner, *map(_format_number, cell)])
    return rows


def _split_metric_name(name: str, agents: Sequence[str]) -> tuple[str, str]:
    """Agent and part of a metric: `low/score` belongs to agent low, a metric without an agent to the team."""
    agent, slash, part = name.partition("/")
    return (agent, part) if slash and agent in agents else (TEAM, name)


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _format_csv(rows: Rows) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _format_markdown(rows: Rows) -> str:
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def _format_latex(rows: Rows) -> str:
    """A `tabular` environment that needs no packages."""
    texts = sum(not all(_is_number(row[column]) for row in rows[1:]) for column in range(len(rows[0])))
    lines = [" & ".join(map(_escape_latex, row)) + r" \\" for row in rows]
    columns = "l" * texts + "r" * (len(rows[0]) - texts)
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", r"\hline", lines[0], r"\hline", *lines[1:], r"\hline"]) + (
        "\n" + r"\end{tabular}" + "\n"
    )


def _escape_latex(text: str) -> str:
    return re.sub(r"[\\~^&%$#_{}]", lambda found: LATEX_SPECIAL.get(found[0], "\\" + found[0]), text)


def _is_number(cell: str) -> bool:
    try:
        float(cell or 0)
    except ValueError:
        return False
    return True


FORMATTERS: dict[str, Callable[[Rows], str]] = {
    "csv": _format_csv,
    "markdown": _format_markdown,
    "latex": _format_latex,
}
