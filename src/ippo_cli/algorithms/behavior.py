"""Weights of the policy loss for responses that another distribution than the policy has sampled."""

from __future__ import annotations

import math

from torch import Tensor

from ippo_cli.config.schema import AlgorithmConfig, WeightLevel
from ippo_cli.formulas import behavior_weights, cross_agent_weights
from ippo_cli.types import Rollout


def row_weights(
    rollout: Rollout, config: AlgorithmConfig, *, is_shared: bool = False, is_limited: bool = True
) -> Tensor:
    """The weight of each token, `[B, R]`; 0 off the mask.

    `is_shared`: another agent has sampled the rows. `is_limited`: whether caps and ranges apply.
    """
    settings, cross_agent = config.behavior_correction, config.cross_agent
    if is_shared and cross_agent.exponent is not None:
        return cross_agent_weights(
            rollout.logprobs,
            rollout.behavior_logprobs,
            rollout.response_mask,
            exponent=cross_agent.exponent,
            clip_range=cross_agent.clip_range if is_limited else None,
        )
    if settings.level is WeightLevel.none:
        return rollout.response_mask.float()
    band = None
    if settings.band_low is not None and settings.band_high is not None and is_limited:
        band = (settings.band_low, settings.band_high)
    return behavior_weights(
        rollout.logprobs,
        rollout.behavior_logprobs,
        rollout.response_mask,
        level=settings.level.value,
        cap=settings.cap if settings.cap is not None and is_limited else math.inf,
        band=band,
    )
