"""Metrics of the responses of other agents that a policy is trained on (`team.share_rollouts`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ippo_cli.algorithms.behavior import row_weights
from ippo_cli.config.schema import AlgorithmConfig
from ippo_cli.engine import distributed
from ippo_cli.reporting.iteration_metrics import ratio
from ippo_cli.types import Experience, Rollout, Targets


def shared_metrics(
    experience: Experience,
    targets: Mapping[str, Targets],
    shared: Mapping[str, Mapping[str, Targets]],
    recent_scores: Mapping[str, Sequence[float]],
    config: AlgorithmConfig,
) -> dict[str, float]:
    """The metrics of every agent by full name, over all ranks.

    `shared`: by agent and author, the targets of the shared rows. `recent_scores`: of iterations before this one.
    """
    row: dict[str, float] = {}
    for name, by_author in shared.items():
        sums = [_sum_rows(experience.shared[name][author], own, config) for author, own in by_author.items()]
        own_rows = targets[name].loss_mask.any(dim=1).sum().double()
        own, rows, mean_ratio, tokens, weight, limited = distributed.all_sum(
            torch.cat([own_rows[None], torch.stack(sums).sum(dim=0)])
        ).tolist()
        row |= {
            f"{name}/shared/rows": rows,
            f"{name}/shared/row_fraction": ratio(rows, rows + own),
            f"{name}/shared/ratio": ratio(mean_ratio, rows),
            f"{name}/shared/weight": ratio(weight, tokens),
            f"{name}/shared/limited_fraction": ratio(limited, tokens),
        }
    return row | {f"{name}/shared/capability": sum(own) / len(own) for name, own in recent_scores.items() if own}


def _sum_rows(rollout: Rollout, targets: Targets, config: AlgorithmConfig) -> Tensor:
    """Rows, their mean ratios, tokens, weights, and tokens with a limited weight, `[5]`: sums of this rank."""
    mask = targets.loss_mask
    counts = mask.sum(dim=1)
    logratio = torch.where(mask, rollout.logprobs - rollout.behavior_logprobs, 0.0).double().sum(dim=1)
    ratios = torch.where(counts > 0, (logratio / counts.clamp(min=1)).exp(), 0.0)
    unlimited = row_weights(rollout, config, is_shared=True, is_limited=False)
    is_limited = (targets.behavior_weights != unlimited) & mask
    weights = torch.where(mask, targets.behavior_weights, 0.0)
    return torch.stack(
        [part.double().sum() for part in ((counts > 0), ratios, counts, weights, is_limited)],
    )
