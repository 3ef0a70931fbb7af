"""Pages of TensorBoard's custom scalars: scores of all agents, and the main charts of each agent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

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
