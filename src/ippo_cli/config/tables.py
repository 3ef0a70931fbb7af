"""Tables of numbers as CSV, Markdown or LaTeX, with columns for the agent and the part of a score."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence

TEAM = "team"  # agent column of metrics that belong to no single agent
LATEX_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}

Rows = list[list[str]]
"""The heading and the rows of a table."""


def split_metric_name(name: str, agents: Sequence[str]) -> tuple[str, str]:
    """Agent and part of a metric: `low/score` belongs to agent low, a metric without an agent to the team."""
    agent, slash, part = name.partition("/")
    return (agent, part) if slash and agent in agents else (TEAM, name)


def format_number(value: float | None) -> str:
    """Six significant digits; empty for None."""
    return "" if value is None else f"{value:.6g}"


def escape_formula(cell: str) -> str:
    """A cell that spreadsheets do not compute: `=...` with an apostrophe before it; numbers as they are."""
    try:
        float(cell)
    except ValueError:
        return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
    return cell


def format_csv(rows: Rows) -> str:
    """CSV with one line per row."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[escape_formula(cell) for cell in row] for row in rows])
    return text.getvalue()


def format_markdown(rows: Rows) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def format_latex(rows: Rows) -> str:
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
    "csv": format_csv,
    "markdown": format_markdown,
    "latex": format_latex,
}
