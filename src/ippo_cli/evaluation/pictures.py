"""Draws critic reports (values against references, numbers by position) and cross-play tables as heat maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ippo_cli.formulas.critic_quality import Estimate, ValuedStates, calibration_bins
from ippo_cli.runs.intervals import t_quantile

NO_PICTURE = "no picture is drawn: matplotlib is not installed; pip install 'ippo-cli[bench]'"
CALIBRATION_BINS = 10
SHOWN = {
    "explained_variance_corrected": "explained variance",
    "rank_correlation_within_corrected": "rank corr. within prompt",
    "pair_accuracy": "pair accuracy",
}

AgentPicture = tuple[str, ValuedStates, Mapping[str, tuple[int, Mapping[str, Estimate]]]]
"""An agent, its states, and the numbers of its groups."""


def can_draw() -> bool:
    """Whether matplotlib, an optional dependency, is installed."""
    return find_spec("matplotlib") is not None


def draw_critics(reports: Sequence[AgentPicture], file: Path) -> None:
    """One row per agent: values against references with their calibration, and the numbers of each group."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "critic", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9.0, 3.6 * len(reports)), layout="constrained")
        axes = figure.subplots(len(reports), 2, squeeze=False)
        for (agent, states, groups), (left, right) in zip(reports, axes, strict=True):
            _draw_calibration(left, agent, states)
            _draw_groups(right, groups)
        figure.savefig(file, metadata={"Date": None})


def _draw_calibration(axis: Any, agent: str, states: ValuedStates) -> None:
    values, references = states.values.tolist(), states.references.tolist()
    axis.scatter(values, references, s=8, alpha=0.35, color="C0", lw=0, label="states")
    rows = calibration_bins(states, CALIBRATION_BINS)
    axis.errorbar(
        [row["value"] for row in rows],
        [row["reference"] for row in rows],
        yerr=[t_quantile(max(int(row["states"]) - 1, 1)) * row["standard_error"] for row in rows],
        fmt="o-",
        color="C1",
        ms=4,
        lw=1.2,
        label="means of states with similar values",
    )
    ends = [min([*values, *references]), max([*values, *references])]
    axis.plot(ends, ends, color="0.6", lw=1, ls="--", label="calibrated")
    axis.set_xlabel("value of the critic", size=8)
    axis.set_ylabel("reference value", size=8)
    axis.set_title(agent, size=9)
    axis.tick_params(labelsize=7)
    axis.legend(fontsize=6)


def _draw_groups(axis: Any, groups: Mapping[str, tuple[int, Mapping[str, Estimate]]]) -> None:
    names = list(groups)
    for number, (key, label) in enumerate(SHOWN.items()):
        found = [groups[name][1][key] for name in names]
        places = [place + (number - 1) * 0.15 for place in range(len(names))]
        errors = [
            [one.value - one.low for one in found],
            [one.high - one.value for one in found],
        ]
        errors = [[max(size, 0.0) for size in side] for side in errors]
        axis.errorbar(
            places, [one.value for one in found], yerr=errors, fmt="o", ms=4, lw=1, color=f"C{number}", label=label
        )
    axis.axhline(0.0, color="0.6", lw=0.8)
    axis.axhline(0.5, color="C2", lw=0.8, ls=":")
    axis.set_ylim(-0.6, 1.1)
    labels = ["all states", *(name.partition(", ")[2] for name in names[1:])]
    axis.set_xticks(range(len(names)), labels, rotation=20, ha="right", size=7)
    axis.tick_params(labelsize=7)
    axis.set_title("95 % intervals over prompts; dotted: chance of pairs", size=8)
    axis.legend(fontsize=6)


NO_HEAT_MAP = "crossplay.png is not drawn: matplotlib is not installed; pip install 'ippo-cli[bench]'"
CELL, MARGIN = 0.95, 2.2  # inches


class HeatMapTable(Protocol):
    """The fields of a cross-play table that are drawn."""

    @property
    def agent(self) -> str: ...
    @property
    def others(self) -> list[str]: ...
    @property
    def metric(self) -> str: ...
    @property
    def scores(self) -> list[list[float]]: ...
    @property
    def standard_errors(self) -> list[list[float]]: ...


def draw_heat_maps(tables: Sequence[HeatMapTable], names: Sequence[str], file: Path) -> None:
    """Draw one heat map per table, side by side, with a common colour scale."""
    from matplotlib.figure import Figure

    side = CELL * len(names) + MARGIN
    figure = Figure(figsize=(side * len(tables), side * 0.9), layout="constrained")
    numbers = [score for table in tables for row in table.scores for score in row if score == score]
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    for axis, table in zip(figure.subplots(1, len(tables), squeeze=False)[0], tables, strict=True):
        axis.imshow(table.scores, vmin=low, vmax=high, cmap="viridis")
        for row, (scores, errors) in enumerate(zip(table.scores, table.standard_errors, strict=True)):
            for column, (score, error) in enumerate(zip(scores, errors, strict=True)):
                light = score < (low + high) / 2
                text = f"{score:.2f}\n±{error:.2f}"
                axis.text(column, row, text, ha="center", va="center", size=8, color="white" if light else "black")
        axis.set_xticks(range(len(names)), names, rotation=45, ha="right", size=7)
        axis.set_yticks(range(len(names)), names, size=7)
        axis.set_xlabel(f"{' and '.join(table.others)} from")
        axis.set_ylabel(f"{table.agent} from")
        axis.set_title(table.metric, size=9)
    figure.savefig(file, dpi=150)
