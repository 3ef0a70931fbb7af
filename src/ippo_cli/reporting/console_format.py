"""Formats an iteration's metrics for the console, as one plain line or a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from rich.console import Group
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from ippo_cli.config.text import LINE_WIDTH, NAME_WIDTH, shorten_name, text_width, truncate_text

SPARKS = "▁▂▃▄▅▆▇█"
COLUMNS = {  # column heading -> metric name after the agent's name
    "score": "score/mean",
    "entropy": "policy/entropy",
    "approx_kl": "policy/approx_kl",
    "kl/reference": "kl/reference",
    "explained_variance": "value/explained_variance",
    "response_length": "rollout/response_length",
}
WORST_BY = {"approx_kl": max, "kl/reference": max}  # how to select the worst agent; default: min
PHASES = ("rollout", "score", "logprobs", "targets", "update")
FRAME, PADDING = 4, 2  # character widths of a panel's frame and of a table column's padding
NUMBER_WIDTH, SHORT_NAME, TREND_WIDTH = 6, 8, 24
TYPICAL_NUMBER = -0.123  # typical width, so that a line's layout does not depend on the values


def iteration_panel(
    row: Mapping[str, float],
    agents: Sequence[str],
    columns: Sequence[str],
    history: Mapping[str, Sequence[float]],
    num_iterations: int,
    eta_s: float,
    panel_width: int,
) -> Panel:
    """An iteration as a table in a frame. `history`: each agent's mean scores so far; `eta_s`: remaining seconds."""
    widths, name_width, trend_width = fit_column_widths(columns, agents, panel_width - FRAME)
    headings = [
        Column(_heading(column), justify="right", width=width, overflow="fold") for column, width in widths.items()
    ]
    table = Table(Column("agent", width=name_width), *headings, box=None)
    if trend_width:
        table.add_column("trend", width=trend_width)
    for name in agents:
        cells = [format_number(row.get(agent_metric(name, column))) for column in widths]
        trend = [sparkline(history[name], trend_width)] if trend_width else []
        table.add_row(shorten_name(name, name_width), *cells, *trend)
    seconds = f"{row['time/iteration']:.1f}s ({_format_phases(row)})"
    footer = Text(
        f"{row['perf/tokens_per_second']:.0f} tok/s   {seconds}   ETA {_format_duration(eta_s)}",
        style="dim",
        no_wrap=False,
        overflow="fold",
    )
    return Panel(Group(table, footer), title=f"iteration {int(row['iteration'])} of {num_iterations}", expand=False)


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


def iteration_line(
    row: Mapping[str, float], agents: Sequence[str], columns: Sequence[str], num_iterations: int, eta_s: float
) -> str:
    """An iteration in one line, in the first layout that fits numbers of typical width."""
    typical_row = dict(row) | {
        key: TYPICAL_NUMBER for name in agents for column in columns if (key := agent_metric(name, column))
    }
    typical_row |= {"perf/tokens_per_second": 12345.0, "time/iteration": 12.3}
    brief = [column for column in columns if column != "response_length"]
    layouts: list[tuple[Callable[..., list[str]], Sequence[str], tuple[str, ...]]] = [
        (_format_each_agent, columns, ("agents", "rate", "phases")),
        (_format_each_agent, columns, ("agents", "rate")),
        (_format_each_agent, brief, ("agents", "rate")),
        (_format_each_agent, brief, ("rate",)),
        (_format_each_agent, brief, ()),
        (_format_worst_agent, brief, ("agents", "rate")),
        (_format_worst_agent, brief, ("rate",)),
        (_format_worst_agent, brief, ()),
    ]
    for format_agents, wanted, extras in layouts:
        if (
            text_width(_join_parts(typical_row, agents, format_agents, wanted, extras, num_iterations, 35999.0))
            <= LINE_WIDTH
        ):
            break
    return truncate_text(_join_parts(row, agents, format_agents, wanted, extras, num_iterations, eta_s))


def _join_parts(
    row: Mapping[str, float],
    agents: Sequence[str],
    format_agents: Callable[..., list[str]],
    columns: Sequence[str],
    extras: Sequence[str],
    num_iterations: int,
    eta_s: float,
) -> str:
    parts = [f"{int(row['iteration']):>5}/{num_iterations}"]
    if "agents" in extras and len(agents) > 1:
        names = "/".join(shorten_name(name) for name in agents)
        parts.append(f"{names if format_agents is _format_each_agent else f'{len(agents)} agents'}:")
    parts += format_agents(row, agents, columns)
    if "rate" in extras:
        parts.append(f"{row['perf/tokens_per_second']:.0f} tok/s")
    seconds = f"{row['time/iteration']:.1f}s"
    if "phases" in extras:
        seconds += f" ({_format_phases(row)})"
    return "  ".join([*parts, seconds, f"ETA {_format_duration(eta_s)}"])


def _format_phases(row: Mapping[str, float]) -> str:
    return " ".join(f"{phase} {row[f'time/{phase}']:.1f}" for phase in PHASES if f"time/{phase}" in row)


def agent_metric(agent: str, column: str) -> str:
    """The name of the metric that a column shows for an agent."""
    return f"{agent}/{COLUMNS[column]}"


def _format_each_agent(row: Mapping[str, float], agents: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Every agent's number: `score 0.504/0.498`."""
    return [
        f"{column} " + "/".join(format_number(row.get(agent_metric(name, column))) for name in agents)
        for column in columns
    ]


def _format_worst_agent(row: Mapping[str, float], agents: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The worst agent's number, and the mean score: `score 0.504 min 0.101  entropy min 1.066`."""
    parts = []
    for column in columns:
        found = [row.get(agent_metric(name, column), math.nan) for name in agents]
        values = [value for value in found if not math.isnan(value)]
        worst = WORST_BY.get(column, min)
        mean = f"{format_number(sum(values) / len(values))} " if values and column == "score" else ""
        parts.append(f"{column} {mean}{worst.__name__} {format_number(worst(values, default=None))}")
    return parts


def format_number(value: float | None) -> str:
    """A number in about six characters; `-` for None and NaN."""
    if value is None or math.isnan(value):
        return "-"
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if 1e-7 <= size < 0.0005:  # smaller values are rounding errors, e.g. the KL of a policy to itself
        return f"{value:.0e}"
    if size >= 1e4:
        return f"{value:.1e}"
    return f"{value:.{3 if size < 10 else 2 if size < 100 else 1}f}"


def sparkline(numbers: Sequence[float], width: int = TREND_WIDTH) -> str:
    """The last `width` numbers as block characters, scaled from lowest to highest; a space if not finite."""
    finite = [number for number in numbers[-width:] if math.isfinite(number)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0
    blocks = {number: SPARKS[min(int((number - low) / span * len(SPARKS)), len(SPARKS) - 1)] for number in finite}
    return "".join(blocks.get(number, " ") for number in numbers[-width:])


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
