"""Writes TensorBoard event files, and the layout of their charts, to a run's folder."""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ippo_cli.config.errors import is_disk_full
from ippo_cli.reporting.trackers.sample_turns import markdown_table
from ippo_cli.reporting.trackers.tracker import Row

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


MIN_FREE_BYTES = 1 << 20  # free bytes needed before a retry, because every attempt starts a new file


class TensorBoardTracker:
    """Writes one scalar per number of a row, samples as tables, histograms, and a layout of charts by agent."""

    name = "tb/"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None
        self._has_failed = self._has_layout = False

    def log(self, row: Row, iteration: int) -> None:
        with self._open_writer(iteration) as writer:
            for key, value in row.items():
                if key != "iteration":
                    writer.add_scalar(key, math.nan if value is None else value, iteration)
            if not self._has_layout and any(name.endswith("/score/mean") for name in row):  # a training iteration
                writer.add_custom_scalars(chart_layout(row))
                self._has_layout = True

    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        kind, _, iteration = name.rpartition("_")
        with self._open_writer(int(iteration)) as writer:
            writer.add_text(f"samples/{kind}", markdown_table(rows), int(iteration))

    def log_distributions(self, iteration: int, values: Mapping[str, Sequence[float]]) -> None:
        import numpy as np

        with self._open_writer(iteration) as writer:
            for name, numbers in values.items():
                if finite := [number for number in numbers if math.isfinite(number)]:
                    writer.add_histogram(name, np.array(finite), iteration)

    def finish(self, state: str) -> None:
        if self._writer is not None:
            self._writer.close()

    @contextmanager
    def _open_writer(self, iteration: int) -> Iterator[SummaryWriter]:
        """The writer, flushed at the end; after a failure the next call starts a new file."""
        if self._has_failed and shutil.disk_usage(self._folder).free <= MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            if self._writer is None:
                from torch.utils.tensorboard import SummaryWriter

                threading.excepthook = _ignore_disk_full
                # Purge later points of an earlier process: a resume abandons those iterations.
                self._writer = SummaryWriter(str(self._folder / "tb"), purge_step=iteration)
            yield self._writer
            self._writer.flush()
        except Exception:
            self._has_failed, self._has_layout, self._writer = True, False, None  # its thread has ended
            raise
        self._has_failed = False


def _ignore_disk_full(args: threading.ExceptHookArgs) -> None:
    """Hide tracebacks of the writer's thread on a full disk: the next row raises the same error."""
    if type(args.thread).__name__ != "_AsyncWriterThread" or args.exc_value is None or not is_disk_full(args.exc_value):
        threading.__excepthook__(args)


AGENT_CHARTS: dict[str, tuple[str, ...]] = {  # title -> metrics after the agent's name
    "score": ("score/mean", "score/greedy"),
    "entropy": ("policy/entropy",),
    "KL": ("policy/approx_kl", "kl/reference"),
    "explained variance": ("value/explained_variance",),
    "clip fraction": ("policy/clip_fraction",),
    "response length": ("rollout/response_length",),
    "losses": ("policy/loss", "value/loss"),
    "gradient norms": ("policy/grad_norm", "value/grad_norm", "joint/grad_norm"),
}
SCORES_PAGE = "scores"

Layout = dict[str, dict[str, tuple[str, Sequence[str]]]]
"""Charts by page and title, as `SummaryWriter.add_custom_scalars` expects them; tags are regular expressions."""


def chart_layout(names: Iterable[str]) -> Layout:
    """The pages for the metrics of one iteration.

    An agent's page has every chart with a metric of any agent, since agents may be updated in turn. Shared weights,
    which have no score, have a page with their own metrics.
    """
    metrics = {name.partition("/")[::2] for name in names}
    charted = {metric for chart in AGENT_CHARTS.values() for metric in chart}
    agents = sorted(prefix for prefix, metric in metrics if metric == "score/mean")
    shared = sorted({prefix for prefix, metric in metrics if metric in charted} - set(agents))
    present = {metric for _, metric in metrics}
    layout: Layout = {
        SCORES_PAGE: {
            "training": _chart(f"{re.escape(name)}/score/mean" for name in agents),
            "evaluation": _chart(["eval/[^/]+/score"]),
            "evaluation by agent": _chart(f"eval/[^/]+/{re.escape(name)}/score" for name in agents),
        }
    }
    for name in (*agents, *shared):
        own = present if name in agents else {metric for prefix, metric in metrics if prefix == name}
        layout[f"agent {name}" if name in agents else f"weights {name}"] = {
            title: _chart(f"{re.escape(name)}/{metric}" for metric in chart if metric in own)
            for title, chart in AGENT_CHARTS.items()
            if own & set(chart)
        }
    return layout


def _chart(tags: Iterable[str]) -> tuple[str, list[str]]:
    return "Multiline", [f"^{tag}$" for tag in tags]
