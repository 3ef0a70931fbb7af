"""Draws cross-play tables as heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

NO_PICTURE = "crossplay.png is not drawn: matplotlib is not installed; pip install 'ippo-cli[bench]'"
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


def can_draw() -> bool:
    """Whether matplotlib, an optional dependency, is installed."""
    return find_spec("matplotlib") is not None


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
