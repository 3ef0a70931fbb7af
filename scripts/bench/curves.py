"""Learning curves as small SVG pictures: mean over seeds, with a band from lowest to highest."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from learning import AT_EQUAL_TIME, COMPARED, EMBEDDED, Outcome, picture_of, score_after
from svg_files import write_svg

mpl.use("svg")
mpl.rcParams |= {
    "svg.hashsalt": "curves",
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
from matplotlib import pyplot  # noqa: E402  (after the choice of backend)


def draw(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """Draw one picture per algorithm over all tasks, and one of the algorithms compared at equal time."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks, variants = (list(dict.fromkeys(getattr(one, key) for one in outcomes)) for key in ("task", "variant"))
    pictures = [_over_samples([one for one in outcomes if one.variant == name], tasks, folder) for name in variants]
    compared = [one for one in outcomes if one.variant.split("/")[0] in COMPARED]
    if len({one.variant for one in compared}) > 1:
        pictures.append(_over_time(compared, tasks, folder / f"{AT_EQUAL_TIME}.svg"))
    embedded = [one for one in outcomes if (one.task, one.variant) == EMBEDDED]
    if embedded:
        pictures.append(_by_seed(embedded, folder / "embedded.svg"))
    return pictures


def compare(name: str, outcomes: Sequence[Outcome], references: Mapping[str, float], folder: Path) -> Path:
    """Draw the variants of one experiment: training scores (lines), held-out scores (dots), references (dashed)."""
    folder.mkdir(parents=True, exist_ok=True)
    figure, axis = pyplot.subplots(figsize=(5.2, 2.4))
    for way in dict.fromkeys(one.variant for one in outcomes):
        results = [one for one in outcomes if one.variant == way]
        for held_out, style in ((False, {"linewidth": 1.2, "label": way}), (True, {"linestyle": "", "marker": "."})):
            columns = list(zip(*(one.points(held_out=held_out) for one in results), strict=True))
            scores = [[point.score for point in column] for column in columns]
            color = {} if not held_out else {"color": axis.lines[-1].get_color()}
            _band(axis, [column[0].samples for column in columns], scores, style | color)
    for label, value in references.items():
        axis.axhline(value, linewidth=0.8, linestyle="--", color="gray")
        axis.annotate(label, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", color="gray")
    axis.set(xlabel="joint samples trained on", ylabel="score")
    if outcomes:
        axis.legend(frameon=False)
    return saved(figure, folder / f"episodes-{name}.svg")


def _by_seed(outcomes: Sequence[Outcome], file: Path) -> Path:
    """Draw held-out scores of every seed of the default run."""
    figure, axis = pyplot.subplots(figsize=(5.2, 2.4))
    for one in outcomes:
        points = one.points(held_out=True)
        samples = [point.samples for point in points]
        axis.plot(samples, [point.score for point in points], ".-", linewidth=1, label=f"seed={one.seed}")
    axis.set(xlabel="joint samples trained on", ylabel="share of correct letters", ylim=(0, 1.02))
    axis.legend(frameon=False, loc="lower right")
    return saved(figure, file)


def _over_samples(outcomes: Sequence[Outcome], tasks: Sequence[str], folder: Path) -> Path:
    """Draw held-out scores on every task."""
    figure, axes = _panels(tasks, "samples")
    for task, axis in zip(tasks, axes, strict=True):
        results = [one for one in outcomes if one.task == task]
        columns = list(zip(*(one.points(held_out=True) for one in results), strict=True))
        scores = [[point.score for point in column] for column in columns]
        _band(axis, [column[0].samples for column in columns], scores, {"linewidth": 1.2, "marker": "."})
    return saved(figure, folder / f"{picture_of(outcomes[0].variant)}.svg")


def _over_time(outcomes: Sequence[Outcome], tasks: Sequence[str], file: Path) -> Path:
    """Draw held-out scores of several algorithms, each up to the shortest training time of its seeds."""
    figure, axes = _panels(tasks, "seconds of training")
    for task, axis in zip(tasks, axes, strict=True):
        for name in dict.fromkeys(one.variant for one in outcomes):
            results = [one for one in outcomes if (one.task, one.variant) == (task, name)]
            end = min((one.curve[-1].seconds for one in results), default=0.0)
            times = [end * step / 40 for step in range(41)] if results else []
            scores = [[score_after(one, seconds) for one in results] for seconds in times]
            _band(axis, times, scores, {"linewidth": 1.2, "label": name})
    axes[0].legend(frameon=False)
    return saved(figure, file)


def _panels(tasks: Sequence[str], label: str) -> tuple[Any, list[Any]]:
    figure, axes = pyplot.subplots(1, len(tasks), figsize=(2.4 * len(tasks), 2.0), squeeze=False, sharey=True)
    for task, axis in zip(tasks, axes[0], strict=True):
        axis.set(title=task, xlabel=label, ylim=(0, 1.02))
    axes[0][0].set_ylabel("score")
    return figure, list(axes[0])


def _band(axis: Any, at: Sequence[float], scores: Sequence[Sequence[float]], style: dict[str, Any]) -> None:
    line = axis.plot(at, [statistics.fmean(row) for row in scores], **style)[0]
    axis.fill_between(
        at, [min(row) for row in scores], [max(row) for row in scores], alpha=0.2, linewidth=0, color=line.get_color()
    )


def saved(figure: Any, file: Path) -> Path:
    """Write a figure, close it, and return the file."""
    figure.tight_layout()
    write_svg(figure, file)
    pyplot.close(figure)
    return file
