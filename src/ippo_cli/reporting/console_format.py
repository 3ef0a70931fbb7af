"""Formats an iteration's metrics for the console as one plain line, and numbers, durations and sparklines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ippo_cli.config.text import LINE_WIDTH, shorten_name, text_width, truncate_text
from ippo_cli.forecast.forecast import RISK, read_weights

SPARKS = "▁▂▃▄▅▆▇█"
COLUMNS = {  # column heading -> metric name after the agent's name
    "score": "score/mean",
    "entropy": "policy/entropy",
    "approx_kl": "policy/approx_kl",
    "kl/reference": "kl/reference",
    "explained_variance": "value/explained_variance",
    "clip_fraction": "policy/clip_fraction",
    "response_length": "rollout/response_length",
}
PANEL_ONLY = ("clip_fraction",)  # not in the plain line
WORST_BY = {"approx_kl": max, "kl/reference": max}  # how to select the worst agent; default: min
PHASES = ("rollout", "score", "logprobs", "targets", "update")
ROUNDING_ERROR = 1e-7  # below it an approximate KL is that of a policy to itself
TYPICAL_NUMBER = -0.123  # typical width, so that a line's layout does not depend on the values


def iteration_line(
    row: Mapping[str, float], agents: Sequence[str], columns: Sequence[str], num_iterations: int, eta_s: float
) -> str:
    """An iteration in one line, in the first layout that fits numbers of typical width."""
    typical_row = dict(row) | {
        key: TYPICAL_NUMBER for name in agents for column in columns if (key := agent_metric(name, column))
    }
    typical_row |= {"perf/tokens_per_second": 12345.0, "time/iteration": 12.3}
    columns = [column for column in columns if column not in PANEL_ONLY]
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
    parts += format_risk(row)
    if "rate" in extras:
        parts.append(f"{row['perf/tokens_per_second']:.0f} tok/s")
    seconds = f"{row['time/iteration']:.1f}s"
    if "phases" in extras:
        seconds += f" ({format_phases(row)})"
    return "  ".join([*parts, seconds, f"ETA {format_duration(eta_s)}"])


def format_risk(row: Mapping[str, float]) -> list[str]:
    """The forecast of a fall of the score, from the threshold of warnings on: `risk 0.62`."""
    risk = row.get(RISK, 0.0)
    return [f"risk {risk:.2f}"] if risk >= read_weights().threshold else []


def format_phases(row: Mapping[str, float]) -> str:
    """The seconds of an iteration's phases: `rollout 1.0 score 0.0`."""
    return " ".join(f"{phase} {row[f'time/{phase}']:.1f}" for phase in PHASES if f"time/{phase}" in row)


def agent_metric(agent: str, column: str) -> str:
    """The name of the metric that a column shows for an agent."""
    return f"{agent}/{COLUMNS[column]}"


def has_information(row: Mapping[str, float], agent: str, column: str) -> bool:
    """Whether a row has a metric of an agent, and not only rounding errors: a KL of an on-policy algorithm."""
    value = row.get(agent_metric(agent, column))
    return value is not None and not (column == "approx_kl" and abs(value) < ROUNDING_ERROR)


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
    if ROUNDING_ERROR <= size < 0.0005:  # smaller values are rounding errors, e.g. the KL of a policy to itself
        return f"{value:.0e}"
    if size >= 1e4:
        return f"{value:.1e}"
    return f"{value:.{3 if size < 10 else 2 if size < 100 else 1}f}"


def finite_mean(numbers: Sequence[float]) -> float:
    """The mean of the finite numbers; NaN without any."""
    finite = [number for number in numbers if math.isfinite(number)]
    return sum(finite) / len(finite) if finite else math.nan


def resample(numbers: Sequence[float], width: int) -> list[float]:
    """At most `width` means of consecutive numbers, over the whole sequence."""
    size = max(-(-len(numbers) // width), 1)
    return [finite_mean(numbers[start : start + size]) for start in range(0, len(numbers), size)]


def sparkline(numbers: Sequence[float], width: int = 24) -> str:
    """The last `width` numbers as block characters, scaled from lowest to highest; a space if not finite."""
    finite = [number for number in numbers[-width:] if math.isfinite(number)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0
    blocks = {number: SPARKS[min(int((number - low) / span * len(SPARKS)), len(SPARKS) - 1)] for number in finite}
    return "".join(blocks.get(number, " ") for number in numbers[-width:])


def format_duration(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any: `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
