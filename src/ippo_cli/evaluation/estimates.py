"""Confidence intervals and paired comparisons of evaluations; the unit is the held-out row, not the sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ippo_cli.engine import distributed
from ippo_cli.formulas.estimates import bootstrap_interval, share_interval, sign_flip_p
from ippo_cli.training.evaluate import Evaluation, pass_at_k_by_row

Rows = Mapping[str, Tensor]


def gather_episode_values(result: Evaluation) -> dict[str, Tensor]:
    """By metric, the values of the episodes of all ranks, `[rows, n]`. Collective."""
    return {
        key: distributed.all_gather_rows(values).view(-1, result.generations[key.partition("/")[0]])
        for key, values in result.episode_values.items()
    }


def row_values(result: Evaluation) -> dict[str, Tensor]:
    """By metric that is a mean over rows, the value of each held-out row `[rows]`: mean over episodes, or pass@k.

    NaN where a row has no value. Collective.
    """
    found: dict[str, Tensor] = {}
    for key, values in gather_episode_values(result).items():
        mode, _, name = key.partition("/")
        found[key] = values.nanmean(dim=1)
        for passed, chances in pass_at_k_by_row(name, values).items():
            if f"{mode}/{passed}" in result.metrics:
                found[f"{mode}/{passed}"] = chances
    return found


def confidence_intervals(result: Evaluation, seed: int) -> dict[str, dict[str, Any]]:
    """The 95 % confidence interval of each metric that is a mean over rows, and its method.

    Metrics that are 0 or 1 in every episode, and their pass@k, use Wilson's interval with the effective number of
    trials of `share_interval`; others use the bootstrap over rows. Collective.
    """
    episodes, rows = gather_episode_values(result), row_values(result)
    found: dict[str, dict[str, Any]] = {}
    for key, values in rows.items():
        counted = episodes[key.partition("/pass@")[0]]
        finite = counted[torch.isfinite(counted)]
        is_binary = bool(((finite == 0) | (finite == 1)).all()) and not key.endswith("/response_length")
        if is_binary:
            trials = int(torch.isfinite(counted[torch.isfinite(values)]).sum())
            low, high, method = *share_interval(values, trials), "wilson"
        else:
            low, high, method = *bootstrap_interval(values, seed), "bootstrap"
        found[key] = {"low": low, "high": high, "by": method}
    return found


def length_summary(result: Evaluation) -> dict[str, dict[str, float]]:
    """Quantiles of the number of action tokens of each agent per episode. Collective."""
    found: dict[str, dict[str, float]] = {}
    for key, values in gather_episode_values(result).items():
        if key.endswith("/response_length"):
            quantiles = torch.tensor([0.0, 0.5, 0.9, 1.0], dtype=torch.float64)
            low, median, most, high = values.flatten().quantile(quantiles).tolist()
            found[key] = {"least": low, "median": median, "ninth_decile": most, "most": high}
    return found


def paired_comparison(one: Tensor, other: Tensor, seed: int) -> dict[str, float]:
    """Compare `one` with `other`, both `[rows]` of the same rows; rows with a missing value are excluded.

    Returns the mean difference one - other, its 95 % bootstrap interval over rows, and the p value of a sign-flip
    permutation test.
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
