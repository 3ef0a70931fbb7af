"""The picture of runs: held-out score and main training curves, drawn by matplotlib without a browser."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ippo_cli.config.text import shorten_name
from ippo_cli.report.configurations import Configuration, group_runs
from ippo_cli.runs.intervals import mean_interval
from ippo_cli.runs.records import RunRecord

PANELS = {
    "score/mean": "training score",
    "policy/entropy": "entropy",
    "policy/approx_kl": "approx. KL",
    "value/explained_variance": "explained variance",
    "rollout/response_length": "response length",
}
COLUMNS = 3
STYLES = ("-", "--", ":", "-.")  # of agents

Points = list[tuple[float, float, float | None, float | None]]
"""Iteration, mean, and the limits of the interval."""

Panel = tuple[str, list[tuple[str, str, str, Points]]]
"""A title, and the label, colour, line style and points of each curve."""


def can_draw() -> bool:
    """Whether matplotlib, an optional dependency, is installed."""
    return find_spec("matplotlib") is not None


def draw_runs(runs: Sequence[RunRecord], file: Path, title: str) -> None:
    """Draw one panel for the held-out score and one for each of `PANELS`; a colour per configuration or agent."""
    from matplotlib.figure import Figure

    panels = [_held_out_panel(runs), *_agent_panels(runs)]
    rows = math.ceil(len(panels) / COLUMNS)
    figure = Figure(figsize=(4.2 * COLUMNS, 2.9 * rows), layout="constrained")
    figure.suptitle(shorten_name(title, 100))
    axes = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axis, (name, curves) in zip(axes, panels, strict=False):
        _draw_panel(axis, name, curves)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    figure.savefig(file, dpi=130)


def _held_out_panel(runs: Sequence[RunRecord]) -> Panel:
    groups = group_runs(runs)
    listed = [(group, metric) for group in groups for metric in _held_out_metrics(runs, group, single=len(groups) == 1)]
    curves = [
        (group.label if len(groups) > 1 else metric, f"C{number % 10}", "-", _curve(runs, group, f"eval/{metric}"))
        for number, (group, metric) in enumerate(listed)
    ]
    return "held-out score", curves


def _agent_panels(runs: Sequence[RunRecord]) -> list[Panel]:
    """Panels of metrics that at least one agent has."""
    groups = group_runs(runs)
    agents = list(dict.fromkeys(name for run in runs for name in run.agents))
    panels: list[Panel] = []
    for metric, name in PANELS.items():
        curves = [
            (
                _label(group, agent, len(groups), len(agents)),
                *_style(number, place, len(groups)),
                _curve(runs, group, f"{agent}/{metric}"),
            )
            for number, group in enumerate(groups)
            for place, agent in enumerate(agents)
        ]
        if any(points for *_, points in curves):
            panels.append((name, curves))
    return panels


def _held_out_metrics(runs: Sequence[RunRecord], group: Configuration, *, single: bool) -> list[str]:
    """The primary metric; for one configuration also the same score in the other mode."""
    primary = runs[group.runs[0]].primary_metric
    mode, _, rest = primary.partition("/")
    other = {"sampled": "greedy", "greedy": "sampled"}.get(mode)
    return [primary, f"{other}/{rest}"] if single and other else [primary]


def _style(configuration: int, agent: int, configurations: int) -> tuple[str, str]:
    """Colour and line: of several configurations the colour tells them apart, and the line the agents."""
    return (f"C{configuration % 10}", STYLES[agent % len(STYLES)]) if configurations > 1 else (f"C{agent % 10}", "-")


def _label(group: Configuration, agent: str, configurations: int, agents: int) -> str:
    parts = [*([group.label] if configurations > 1 else []), *([agent] if agents > 1 or configurations == 1 else [])]
    return shorten_name(" ".join(parts), 48)


def _draw_panel(axis: Any, title: str, curves: Sequence[tuple[str, str, str, Points]]) -> None:
    for label, color, style, points in curves:
        if not points:
            continue
        axis.plot(
            [at for at, *_ in points], [mean for _, mean, *_ in points], color=color, ls=style, lw=1.2, label=label
        )
        band = [(at, low, high) for at, _, low, high in points if low is not None]
        if band:
            at, low, high = zip(*band, strict=True)
            axis.fill_between(at, low, high, alpha=0.15, color=color, lw=0)
    axis.set_title(title, size=9)
    axis.set_xlabel("iteration", size=8)
    axis.tick_params(labelsize=7)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=6, loc="best")


def _curve(runs: Sequence[RunRecord], group: Configuration, metric: str) -> Points:
    """The mean over the counted runs that have the metric, at the iterations that all of them have."""
    columns = [column for place in group.counted if (column := _column(runs[place].metrics, metric))]
    points: Points = []
    for at in sorted(set.intersection(*map(set, columns))) if columns else ():
        mean = mean_interval([column[at] for column in columns])
        if mean is not None:
            points.append((at, mean.mean, mean.low, mean.high))
    return points


def _column(rows: Sequence[Mapping[str, float]], metric: str) -> dict[float, float]:
    return {row["iteration"]: value for row in rows if (value := row.get(metric)) is not None and math.isfinite(value)}
