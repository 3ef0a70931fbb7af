"""The picture of a sweep: held-out scores over iterations, and over the values of searched keys."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ippo_cli.config.text import shorten_name
from ippo_cli.runs.intervals import mean_interval
from ippo_cli.sweeps.summary import Configuration, JobSummary, SweepSummary

MAX_CURVES = 10  # coloured curves, for the best configurations; others are grey
MAX_PANELS = 3
MIN_VALUES = 4  # distinct values of a key that a panel needs


def can_draw() -> bool:
    """Whether matplotlib, an optional dependency, is installed."""
    return find_spec("matplotlib") is not None


def draw_summary(summary: SweepSummary, file: Path) -> None:
    """Draw the curves of all configurations, and one panel per numeric key that was searched."""
    from matplotlib.figure import Figure

    searched = _searched_values(summary.jobs)
    figure = Figure(figsize=(7 + 3.2 * len(searched), 4.5), layout="constrained")
    axes = figure.subplots(1, 1 + len(searched), width_ratios=[2.2, *[1] * len(searched)], squeeze=False)[0]
    if any(job.generation is not None for job in summary.jobs):
        _draw_population(axes[0], summary.jobs)
    else:
        _draw_configurations(axes[0], summary.configurations)
    axes[0].set_xlabel("iteration")
    axes[0].set_ylabel(summary.metric or "score")
    for axis, (key, points) in zip(axes[1:], searched.items(), strict=True):
        axis.scatter([value for value, _ in points], [score for _, score in points], s=14)
        values = [value for value, _ in points]
        if min(values) > 0 and max(values) / min(values) > 20:
            axis.set_xscale("log")
        axis.set_xlabel(shorten_name(key, 32), size=8)
    figure.savefig(file, dpi=150)


def _draw_configurations(axis: Any, configurations: Sequence[Configuration]) -> None:
    """Draw the mean over seeds of each configuration, with the t-interval if it has several seeds."""
    for rank, group in enumerate(configurations):
        points = _mean_curve([job.curve for job in group.jobs])
        if not points:
            continue
        named = rank < MAX_CURVES
        label = shorten_name(" ".join(group.overrides) or "all jobs", 60) if named else None
        style: dict[str, Any] = {"label": label} if named else {"color": "0.8", "zorder": 0}
        [line] = axis.plot([at for at, *_ in points], [mean for _, mean, *_ in points], lw=1.2, **style)
        banded = [(at, low, high) for at, _, low, high in points if low is not None]
        if banded:
            at, low, high = zip(*banded, strict=True)
            axis.fill_between(at, low, high, alpha=0.15, color=line.get_color(), lw=0)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=6, loc="best")


def _draw_population(axis: Any, jobs: Sequence[JobSummary]) -> None:
    """Draw the curve of each job without the iterations that it copied from its parent."""
    by_number = {job.number: job for job in jobs}
    for job in jobs:
        parent = by_number.get(job.parent) if job.parent is not None else None
        began = parent.curve[-1][0] if parent is not None and parent.curve else -1
        own = [point for point in job.curve if point[0] >= began]
        if own:
            color = f"C{((job.member or 1) - 1) % 10}"
            axis.plot([at for at, _ in own], [score for _, score in own], lw=1.2, color=color)
    members = sorted({job.member for job in jobs if job.member is not None})
    for member in members[:MAX_CURVES]:
        axis.plot([], [], color=f"C{(member - 1) % 10}", label=f"member {member}")
    axis.legend(fontsize=6, loc="best")


def _mean_curve(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float, float | None, float | None]]:
    """Iteration, mean and interval at the iterations that all non-empty curves share."""
    curve_values = [dict(curve) for curve in curves if curve]
    if not curve_values:
        return []
    found = []
    for at in sorted(set.intersection(*(set(curve) for curve in curve_values))):
        mean = mean_interval([curve[at] for curve in curve_values])
        if mean is not None:
            found.append((at, mean.mean, mean.low, mean.high))
    return found


def _searched_values(jobs: Sequence[JobSummary]) -> dict[str, list[tuple[float, float]]]:
    """Value and last score of each job, by key with at least `MIN_VALUES` distinct numbers."""
    found: dict[str, list[tuple[float, float]]] = {}
    for job in jobs:
        for text in job.overrides:
            key, _, value = text.partition("=")
            try:
                number = float(value)
            except ValueError:
                continue
            if job.last is not None:
                found.setdefault(key, []).append((number, job.last))
    many = {key: points for key, points in found.items() if len({value for value, _ in points}) >= MIN_VALUES}
    return dict(list(many.items())[:MAX_PANELS])
