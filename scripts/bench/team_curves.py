"""Pictures of the team benchmark: performance profiles and sample efficiency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from curves import pyplot, saved
from reliable import bootstrap, interquartile_mean, performance_profile
from team_games import Kind
from team_report import Run, common_seeds, compared

THRESHOLDS = [step / 40 for step in range(-8, 41)]


def draw(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draw the algorithms that have all tasks with equal rewards of both agents; draw nothing if there is none."""
    tasks, names, _ = compared(runs, (Kind.team,))
    if not names:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    curves = {name: _curves(runs, name, tasks) for name in names}
    return [_profiles(curves, folder / "teams-profiles.svg"), _efficiency(curves, folder / "teams-efficiency.svg")]


def _curves(runs: Sequence[Run], name: str, tasks: Sequence[str]) -> np.ndarray:
    """Return points x runs x tasks, up to the length of the shortest curve."""
    found = {(run.task, run.seed): run.curve for run in runs if run.algorithm == name}
    seeds = common_seeds(runs, [name], tasks)
    points = min(len(found[task, seed]) for task in tasks for seed in seeds)
    return np.array([[[found[task, seed][point] for task in tasks] for seed in seeds] for point in range(points)])


def _profiles(curves: dict[str, np.ndarray], file: Path) -> Path:
    figure, axis = pyplot.subplots(figsize=(5.2, 3.0))
    for name, points in curves.items():
        shares = performance_profile(points[-1], THRESHOLDS)
        low, high = bootstrap(lambda scores: performance_profile(scores, THRESHOLDS), points[-1])
        line = axis.plot(THRESHOLDS, shares, linewidth=1.2, label=name)[0]
        axis.fill_between(THRESHOLDS, low, high, alpha=0.1, linewidth=0, color=line.get_color())
    axis.set(xlabel="normalised score", ylabel="share of runs above it", ylim=(0, 1.02))
    axis.legend(frameon=False)
    return saved(figure, file)


def _efficiency(curves: dict[str, np.ndarray], file: Path) -> Path:
    figure, axis = pyplot.subplots(figsize=(5.2, 3.0))
    for name, points in curves.items():
        shares = np.linspace(0, 1, len(points))
        bands = [bootstrap(interquartile_mean, scores) for scores in points]
        line = axis.plot(shares, [interquartile_mean(scores) for scores in points], linewidth=1.2, label=name)[0]
        low, high = zip(*bands, strict=True)
        axis.fill_between(shares, low, high, alpha=0.1, linewidth=0, color=line.get_color())
    axis.set(xlabel="share of a task's episodes", ylabel="interquartile mean, normalised")
    axis.legend(frameon=False)
    return saved(figure, file)
