"""Comparisons with verl: objectives with other trust regions than PPO's, and the penalty of long responses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import verl.trainer.ppo.core_algos as core
from published.cases import EPSILON, SINGLE, Case, Comparison, Side, graded, joined
from published.ours import (
    as_probabilities,
    cispo,
    gmpo,
    gradient_of_masked,
    overlong,
    overlong_limits,
    per_row,
    per_token,
)
from published.verl_losses import AGGREGATIONS, ALL, actor, their_policy
from torch import Tensor
from verl import DataProto
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.reward_manager.dapo import DAPORewardManager


def their_gmpo(advantages: Callable[[Case], Tensor]) -> Side:
    return their_policy(core.compute_policy_loss_geo_mean, "token-mean", advantages)


def their_dppo(loss: Callable[..., Any], *, rare: bool = False) -> Side:
    """The gradient alone: verl's loss is the log-probability with a detached ratio as weight, ours is the ratio."""

    def theirs(c: Case) -> Tensor:
        c = as_probabilities(c, rare=rare)
        return graded(lambda new: loss(c.old, new, c.advantages, c.m, "token-mean", actor(c))[0], c.new)[1]

    return theirs


def their_mask(c: Case) -> Tensor:
    """The gradient of REINFORCE with the ratio to the sampler as weight, which is 0 outside of a band."""
    # One extra row with ratio 1 and advantage 0: without any weight in the band, verl divides by zero.
    c = as_probabilities(c)
    old, advantages = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (c.old, c.advantages))
    mask = torch.nn.functional.pad(c.m, (0, 0, 0, 1), value=1.0)
    correction = RolloutCorrectionConfig(
        bypass_mode=True,
        loss_type="reinforce",
        rollout_is="token",
        rollout_is_threshold=f"{1 - c.low!r}_{1 + c.high!r}",
    )
    config = actor(c, policy_loss=PolicyLossConfig(loss_mode="bypass_mode", rollout_correction=correction))
    config.global_batch_info["batch_num_tokens"] = c.num_tokens

    def loss(new: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(new, (0, 0, 0, 1))
        return core.compute_policy_loss_bypass_mode(old, padded, advantages, mask, "token-mean", config)[0]

    return graded(loss, c.new)[1]


def their_overlong(c: Case) -> Tensor:
    """The penalties of responses of score 0; a response ends with its last action token."""
    limit, ramp = overlong_limits(c)
    manager = DAPORewardManager(
        tokenizer=SimpleNamespace(decode=lambda ids, **settings: "", eos_token="</s>"),
        num_examine=0,
        compute_score=lambda **given: 0.0,
        max_resp_len=limit,
        overlong_buffer_cfg=SimpleNamespace(enable=True, len=ramp, penalty_factor=c.coef, log=False),
    )
    rows = len(c.mask)
    prompts = torch.ones(rows, 1, dtype=torch.int64)
    data = DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": c.ids,
            "attention_mask": torch.cat([prompts, up_to_last(c).long()], dim=1),
        },
        non_tensors={
            "reward_model": np.array([{"ground_truth": ""}] * rows),
            "data_source": np.array(["case"] * rows),
        },
    )
    return manager(data).sum(dim=1)


def up_to_last(c: Case) -> Tensor:
    """All positions up to the last action token, observations included, `[B, R]` bool."""
    return c.mask.flip(1).cumsum(1).flip(1) > 0


def overlong_with_observations(c: Case) -> Tensor:
    whole = up_to_last(c)
    return overlong(replace(c, mask=whole, turn=torch.where(whole, 0, -1)))


DPPO = {"tv": core.compute_policy_loss_dppo_tv, "kl": core.compute_policy_loss_dppo_kl}
GMPO_RANGE = "ranges of log-ratios"

OBJECTIVES = (
    Comparison(
        what=f"CISPO, {ALL}, and gradient",
        on=("empty rows", "far"),
        tolerance=EPSILON,
        ours=joined(*(cispo(mode) for mode in AGGREGATIONS)),
        theirs=joined(
            *(their_policy(core.compute_policy_loss_cispo, mode, per_token) for mode in AGGREGATIONS),
        ),
    ),
    Comparison(
        what=f"GMPO (geo_mean), {GMPO_RANGE}, an advantage per response or token, and gradient",
        ours=joined(gmpo(per_row), gmpo(per_token)),
        theirs=joined(their_gmpo(per_row), their_gmpo(per_token)),
        tolerance=EPSILON,
    ),
    Comparison(
        what=f"GMPO (geo_mean), {GMPO_RANGE}, and gradient",
        ours=gmpo(per_row),
        theirs=their_gmpo(per_row),
        on=("empty rows",),
        tolerance=EPSILON,
        known="rows without action tokens count in the mean over rows; ours excludes them",
        translated=gmpo(per_row, all_rows=True),
    ),
    Comparison(
        what=f"GMPO (geo_mean), {GMPO_RANGE}, and gradient",
        ours=gmpo(per_row),
        theirs=their_gmpo(per_row),
        on=("far",),
        tolerance=(1e-5, 1e-6),  # ratios of e^30 magnify verl's 1e-8
        known="the mean log-ratio is unbounded; ours bounds it to +-20",
        translated=gmpo(per_row, bounded=False),
    ),
    *(
        Comparison(
            what=f"DPPO, trust_region={region}, gradient",
            ours=gradient_of_masked(region, cap=True),
            theirs=their_dppo(loss),
            on=("empty rows", "far"),
            tolerance=EPSILON,
        )
        for region, loss in DPPO.items()
    ),
    *(
        Comparison(
            what=f"DPPO, trust_region={region}, of tokens that were rare, gradient",
            ours=gradient_of_masked(region, cap=True, rare=True),
            theirs=their_dppo(loss, rare=True),
            on=("far",),
            tolerance=EPSILON,
            known="a ratio above e^20 keeps the gradient of the cap; ours has no gradient there",
            translated=gradient_of_masked(region, cap=True, rare=True, bounded=False),
        )
        for region, loss in DPPO.items()
    ),
    Comparison(
        what="mask on both sides of the ratio (bypass_mode: reinforce, weights in a band), gradient",
        ours=gradient_of_masked(None),
        theirs=their_mask,
        on=("empty rows", "far"),
        tolerance=EPSILON,
    ),
    Comparison(
        what="DAPO's penalty of long responses", ours=overlong, theirs=their_overlong, on=("plain",), tolerance=SINGLE
    ),
    Comparison(
        what="DAPO's penalty of long responses",
        ours=overlong,
        theirs=their_overlong,
        tolerance=SINGLE,
        known="one length for all turns, with the observations between them; ours is the length of each turn",
        translated=overlong_with_observations,
    ),
)
