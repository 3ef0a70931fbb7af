"""The live panel on a terminal: scores over the run, a table of agents, the present phase, rate and remaining time."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from ippo_cli.config.text import NAME_WIDTH, PAGE_WIDTH, shorten_name, text_width, truncate_text
from ippo_cli.reporting.console_format import (
    agent_metric,
    finite_mean,
    format_duration,
    format_number,
    format_phases,
    format_risk,
    resample,
    sparkline,
)

FRAME, PADDING = 4, 2  # character widths of a panel's frame and of a table column's padding
NUMBER_WIDTH, SHORT_NAME, TREND_WIDTH, SCORES_WIDTH = 6, 8, 24, 60
ESSENTIAL = ("score", "entropy", "approx_kl", "explained_variance", "clip_fraction")  # the last to be left out
FIXED_HEIGHT = 12  # lines of a terminal that are not rows of agents


class PhaseLine:
    """The present phase and its duration, computed again whenever the display is drawn."""

    def __init__(self) -> None:
        self.phase = ""
        self._began = time.monotonic()

    def begin(self, phase: str) -> None:
        """Begin a phase; an empty name ends the present one."""
        self.phase, self._began = phase, time.monotonic()

    def __rich__(self) -> Text:
        seconds = time.monotonic() - self._began
        elapsed = f"  {format_duration(seconds)}" if seconds >= 1 else ""
        return Text(truncate_text(self.phase, 2 * NAME_WIDTH) + elapsed, overflow="ellipsis", no_wrap=True)


def iteration_panel(
    row: Mapping[str, float],
    agents: Sequence[str],
    columns: Sequence[str],
    history: Mapping[str, Sequence[float]],
    num_iterations: int,
    eta_s: float,
    size: tuple[int, int],
) -> Panel:
    """An iteration in a frame of at most `PAGE_WIDTH` columns.

    `history`: each agent's mean scores so far; `eta_s`: remaining seconds; `size`: columns and lines of the terminal.
    """
    width = min(size[0], PAGE_WIDTH) - FRAME
    columns = sorted(columns, key=lambda column: column not in ESSENTIAL)
    rate, seconds = f"{row['perf/tokens_per_second']:.0f} tok/s", f"{row['time/iteration']:.1f}s"
    parts = [rate, f"{seconds} ({format_phases(row)})", *format_risk(row), f"ETA {format_duration(eta_s)}"]
    footer = Text("   ".join(parts), "dim", overflow="fold")
    content = Group(
        _score_line(row, agents, history, width),
        _agent_table(row, agents, columns, history, width, max(size[1] - FIXED_HEIGHT, 1)),
        footer,
    )
    title = f"iteration {int(row['iteration'])} of {num_iterations}"
    return Panel(content, title=title, expand=False, width=min(size[0], PAGE_WIDTH))


def _score_line(
    row: Mapping[str, float], agents: Sequence[str], history: Mapping[str, Sequence[float]], width: int
) -> Text:
    """The mean score of all agents, and its curve over the whole run."""
    score = finite_mean([row.get(agent_metric(name, "score"), math.nan) for name in agents])
    label = f"score {format_number(score)}"
    means = [finite_mean(scores) for scores in zip(*(history[name] for name in agents), strict=True)]
    room = min(width - len(label) - PADDING, SCORES_WIDTH)
    return Text(f"{label}  {sparkline(resample(means, room), room)}" if room > 0 else label, no_wrap=True)


def _agent_table(
    row: Mapping[str, float],
    agents: Sequence[str],
    columns: Sequence[str],
    history: Mapping[str, Sequence[float]],
    width: int,
    max_rows: int,
) -> Table:
    """One row per agent; with more agents than `max_rows`, the last row has the means of the remaining ones."""
    first = agents if len(agents) <= max_rows else agents[: max_rows - 1]
    others = agents[len(first) :]
    names = [*first, *([f"{len(others)} more"] if others else [])]
    widths, name_width, trend_width = fit_column_widths(columns, names, width)
    if len(agents) == 1:
        trend_width = 0  # the curve of the only agent is above
    headings = [
        Column(_heading(column), justify="right", width=size, overflow="fold") for column, size in widths.items()
    ]
    table = Table(Column("agent", width=name_width), *headings, box=None)
    if trend_width:
        table.add_column("trend", width=trend_width)
    for name in first:
        cells = [format_number(row.get(agent_metric(name, column))) for column in widths]
        trend = [sparkline(history[name], trend_width)] if trend_width else []
        table.add_row(shorten_name(name, name_width), *cells, *trend)
    if others:
        means = [finite_mean([row.get(agent_metric(name, column), math.nan) for name in others]) for column in widths]
        table.add_row(shorten_name(names[-1], name_width), *map(format_number, means), style="dim")
    return table


def fit_column_widths(columns: Sequence[str], agents: Sequence[str], width: int) -> tuple[dict[str, int], int, int]:
    """Column widths of a table of `width` characters: of the numbers, the agents' names, and the trends.

    Numbers are never truncated. If space is short, it first drops the trend, then wraps headings, then shortens names,
    then drops the last columns.
    """
    name_width = max(min(max(map(text_width, agents)), NAME_WIDTH), len("agent"))
    widths = {column: max(NUMBER_WIDTH, len(_heading(column))) for column in columns}
    if _table_width(widths, name_width) + PADDING + TREND_WIDTH > width:
        widths = {column: max(NUMBER_WIDTH, *map(len, _heading(column).split())) for column in columns}
    while len(widths) > 1 and _table_width(widths, min(name_width, SHORT_NAME)) > width:
        widths.popitem()
    name_width = max(min(name_width, width - _table_width(widths, 0)), 1)
    trend_width = min(width - _table_width(widths, name_width) - PADDING, TREND_WIDTH)
    return widths, name_width, trend_width if trend_width >= len("trend") else 0


def _heading(column: str) -> str:
    return column.replace("_", " ")


def _table_width(widths: Mapping[str, int], name_width: int) -> int:
    return sum(width + PADDING for width in (name_width, *widths.values()))
