"""Confidence intervals and paired comparisons of evaluations; the unit is the held-out row, not the sample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ippo_cli.engine import distributed
from ippo_cli.formulas.estimates import Z_95, paired_share_interval, share_interval, sign_flip_p
from ippo_cli.runs.intervals import mean_interval, normal_quantile
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


def t_interval(values: Tensor, comparisons: int = 1) -> tuple[float, float]:
    """The 95 % t-interval of the mean of the finite values `[rows]`; NaN with fewer than two.

    `comparisons`: of how many evaluations on these rows the best was chosen, as in `runs.intervals`.
    """
    found = mean_interval(values.double().tolist(), comparisons)
    if found is None or found.low is None or found.high is None:
        return math.nan, math.nan
    return found.low, found.high


def confidence_intervals(result: Evaluation, comparisons: int = 1) -> dict[str, dict[str, Any]]:
    """The 95 % confidence interval of each metric that is a mean over rows, and its method.

    Metrics that are 0 or 1 in every episode, and their pass@k, use Wilson's interval with the effective number of
    trials of `share_interval`; others use the t-interval over rows. `comparisons`: see `t_interval`. Collective.
    """
    episodes, rows, z = gather_episode_values(result), row_values(result), _z(comparisons)
    found: dict[str, dict[str, Any]] = {}
    for key, values in rows.items():
        counted = episodes[key.partition("/pass@")[0]]
        finite = counted[torch.isfinite(counted)]
        if _is_binary(finite) and not key.endswith("/response_length"):
            trials = int(torch.isfinite(counted[torch.isfinite(values)]).sum())
            low, high, method = *share_interval(values, trials, z), "wilson"
        else:
            low, high, method = *t_interval(values, comparisons), "t"
        found[key] = {"low": low, "high": high, "by": method}
    return found


def _z(comparisons: int) -> float:
    return Z_95 if comparisons == 1 else normal_quantile(comparisons)


def _is_binary(values: Tensor) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def length_summary(result: Evaluation) -> dict[str, dict[str, float]]:
    """Quantiles of the number of action tokens of each agent per episode. Collective."""
    found: dict[str, dict[str, float]] = {}
    for key, values in gather_episode_values(result).items():
        if key.endswith("/response_length"):
            quantiles = torch.tensor([0.0, 0.5, 0.9, 1.0], dtype=torch.float64)
            low, median, most, high = values.flatten().quantile(quantiles).tolist()
            found[key] = {"least": low, "median": median, "ninth_decile": most, "most": high}
    return found


def paired_comparison(one: Tensor, other: Tensor, seed: int, comparisons: int = 1) -> dict[str, float]:
    """Compare `one` with `other`, both `[rows]` of the same rows; rows with a missing value are excluded.

    Returns the mean difference one - other, its 95 % interval over rows, and the p value of a sign-flip permutation
    test. The interval is the t-interval, or that of `paired_share_interval` if all values are 0 or 1. `comparisons`:
    see `t_interval`; the p value is multiplied by it.
    """
    both = torch.isfinite(one) & torch.isfinite(other)
    difference = (one - other)[both]
    if _is_binary(one[both]) and _is_binary(other[both]):
        low, high = paired_share_interval(difference, _z(comparisons))
    else:
        low, high = t_interval(difference, comparisons)
    return {
        "one": float(one[both].mean()),
        "other": float(other[both].mean()),
        "difference": float(difference.mean()),
        "low": low,
        "high": high,
        "p": min(comparisons * sign_flip_p(difference, seed), 1.0),
        "rows": int(both.sum()),
        "higher": int((difference > 0).sum()),
        "lower": int((difference < 0).sum()),
    }
