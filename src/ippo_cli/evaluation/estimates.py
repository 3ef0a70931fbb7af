"""How sure an evaluation's numbers are, and whether two evaluations differ: over held-out rows, never over samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ippo_cli.engine import distributed
from ippo_cli.formulas.estimates import bootstrap_interval, share_interval, sign_flip_p
from ippo_cli.training.evaluate import Evaluation, pass_at_k_by_row

Rows = Mapping[str, Tensor]


def row_values(result: Evaluation) -> dict[str, Tensor]:
    """What each held-out row has of the metrics that are means over rows, `[rows]`: means over its episodes, and its
    pass@k. NaN where it has none. Collective."""
    found: dict[str, Tensor] = {}
    for key, values in _gather_episode_values(result).items():
        mode, _, name = key.partition("/")
        found[key] = values.nanmean(dim=1)
        for passed, chances in pass_at_k_by_row(name, values).items():
            if f"{mode}/{passed}" in result.metrics:
                found[f"{mode}/{passed}"] = chances
    return found


def confidence_intervals(result: Evaluation, seed: int) -> dict[str, dict[str, Any]]:
    """Of each metric that is a mean over rows, where its true mean lies with a confidence of 95 %, and by which method.

    Shares, which are 0 or 1 in every episode, and their pass@k: Wilson's interval for the trials that the rows are
    worth; all else: the bootstrap over rows. Collective.
    """
    episodes, rows = _gather_episode_values(result), row_values(result)
    found: dict[str, dict[str, Any]] = {}
    for key, values in rows.items():
        counted = episodes[key.partition("/pass@")[0]]
        there = counted[torch.isfinite(counted)]
        shares = bool(((there == 0) | (there == 1)).all()) and not key.endswith("/response_length")
        if shares:
            trials = int(torch.isfinite(counted[torch.isfinite(values)]).sum())
            low, high, how = *share_interval(values, trials), "wilson"
        else:
            low, high, how = *bootstrap_interval(values, seed), "bootstrap"
        found[key] = {"low": low, "high": high, "by": how}
    return found


def length_summary(result: Evaluation) -> dict[str, dict[str, float]]:
    """How long agents' parts of episodes are, in action tokens. Collective."""
    found: dict[str, dict[str, float]] = {}
    for key, values in _gather_episode_values(result).items():
        if key.endswith("/response_length"):
            quantiles = torch.tensor([0.0, 0.5, 0.9, 1.0], dtype=torch.float64)
            low, median, most, high = values.flatten().quantile(quantiles).tolist()
            found[key] = {"least": low, "median": median, "ninth_decile": most, "most": high}
    return found


def paired_comparison(one: Tensor, other: Tensor, seed: int) -> dict[str, float]:
    """How `one` differs from `other`, `[rows]` of the same rows; rows that either lacks are left out.

    The mean of one minus other, its interval of 95 % by the bootstrap over rows, and how likely so large a difference
    is if neither were better (signs flipped at random).
    """
    both = torch.isfinite(one) & torch.isfinite(other)
    difference = (one - other)[both]
    low, high = bootstrap_interval(difference, seed)
    return {
        "one": float(one[both].mean()),
        "other": float(other[both].mean()),
        "difference": float(difference.mean()),
        "low": low,
        "high": high,
        "p": sign_flip_p(difference, seed),
        "rows": int(both.sum()),
        "higher": int((difference > 0).sum()),
        "lower": int((difference < 0).sum()),
    }


def _gather_episode_values(result: Evaluation) -> dict[str, Tensor]:
    """By metric, the numbers of all ranks' episodes, `[rows, n]`."""
    return {
        key: distributed.all_gather_rows(values).view(-1, result.generations[key.partition("/")[0]])
        for key, values in result.rows.items()
    }
