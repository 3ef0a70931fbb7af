"""Metric names of earlier versions, converted when rows are read."""

from __future__ import annotations

import re
from functools import cache

RENAMED = (
    # Anchored, because a reward may have a part with such a name: eval/<mode>/cut_share is one.
    (re.compile(r"^([^/]+/score|eval/[^/]+)/failed_share$"), r"\1/failed_fraction"),
    (
        re.compile(r"^([^/]+/rollout|eval/[^/]+/[^/]+)/(truncated|cut|overflow)_share(?=/turn/|$)"),
        r"\1/\2_fraction",
    ),
    (re.compile(r"(?<=/credit/)([^/]+)/(zero|unknown)_share$"), r"\1/\2_fraction"),
    (re.compile(r"(?<=/targets/)advantage_spread(?=/|$)"), "advantage_std"),
    (re.compile(r"(?<=/targets/)drawn_share$"), "resampled_fraction"),
    (re.compile(r"(?<=/targets/)silent_share$"), "zero_advantage_fraction"),
    (re.compile(r"(?<=/value/)left_out_share$"), "truncated_context_fraction"),
    (re.compile(r"(?<=/rollout/)filter_gap$"), "logprob_diff/filter"),
    (re.compile(r"(?<=/rollout/)sampler_gap(?=_max$|$)"), "prob_diff/sampler"),
    (re.compile(r"(?<=/rollout/)probability_gap$"), "prob_diff/behavior"),
    (re.compile(r"(?<=/rollout/)effective_sample_share$"), "ess_ratio"),
    (re.compile(r"^team/partners/share$"), "team/opponents/fraction"),
    (re.compile(r"^team/partners/"), "team/opponents/"),
    (re.compile(r"^time/partners$"), "time/opponents"),
)


@cache
def present_metric_name(name: str) -> str:
    """Return the present name of a metric: `low/rollout/filter_gap` is `low/rollout/logprob_diff/filter`."""
    for pattern, new in RENAMED:
        name = pattern.sub(new, name)
    return name


def is_measured(name: str) -> bool:
    """Whether a metric is a time, a speed or memory, which differs each time an iteration is executed."""
    return name.startswith(("time/", "perf/"))
