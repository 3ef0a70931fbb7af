"""The bound on the difference between the sampler's and the trainer's log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from ippo_cli.config.errors import EngineError
from ippo_cli.config.schema import Config
from ippo_cli.engine import distributed
from ippo_cli.types import Rollout


def sampler_gap(sampled: Rollout, rescored: Rollout) -> float:
    """The mean `|log p_train - log p_sampler|` of the sampled tokens over all ranks; 0 without tokens. Collective."""
    mask = sampled.response_mask
    gap = (sampled.logprobs.double() - rescored.logprobs.double()).abs().where(mask, 0.0)
    total, tokens = distributed.all_sum(torch.stack([gap.sum(), mask.sum().double()])).tolist()
    return total / tokens if tokens else 0.0


def check_sampler_gap(
    config: Config, agents: Iterable[str], sampled: Mapping[str, Rollout], rescored: Mapping[str, Rollout]
) -> None:
    """Raise `EngineError` if an agent's gap is above `rollout.max_sampler_gap`. Collective.

    Agents with filters are not checked: their sampler's log-probabilities are those of the filtered distribution.
    """
    limit = config.rollout.gap_limit
    if limit is None:
        return
    for name in agents:
        if config.task.agents[name].rollout.has_filters:
            continue
        gap = sampler_gap(sampled[name], rescored[name])
        if gap > limit:
            raise EngineError(
                f"rollout.max_sampler_gap={limit}: the log-probabilities of {name} in the engine and "
                f"in the trainer differ by {gap:.3g} per token on average; the engine computes another model, or has "
                "weights of an earlier update: use rollout=hf or actor.dtype=fp32; or raise the bound if it is rounding"
            )
