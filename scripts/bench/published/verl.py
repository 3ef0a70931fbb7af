"""Comparisons with verl: from scores, rewards and values to advantages."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import verl.trainer.ppo.core_algos as core
from published.cases import EPSILON, SINGLE, Case, Comparison, joined
from published.ours import HORIZON, adapted, adaptive, less_group_mean_whitened, outcome_rewards, tokens
from published.verl_losses import LOSSES
from published.verl_objectives import OBJECTIVES
from torch import Tensor
from verl import DataProto
from verl.trainer.ppo.ray_trainer import apply_kl_penalty

from ippo_cli.formulas import (
    adaptive_kl_step,
    group_normalized,
    kl_estimate,
    leave_one_out,
    masked_whiten,
    reward_to_go,
    reweight,
)

ALONE = "the member of a group of one gets its score without a baseline; ours raises an error"
METHODS = ("pow", "max_min", "max_random")


def in_groups(estimator: Callable[..., tuple[Tensor, Tensor]], **settings: Any) -> Callable[[Case], Tensor]:
    """Wrap one of verl's estimators over the responses to one prompt."""
    return lambda c: estimator(outcome_rewards(c), c.m, index=c.group.numpy(), **settings)[0]


def whitened_gae(c: Case) -> tuple[Tensor, Tensor]:
    advantages, returns = tokens(c)
    return masked_whiten(advantages, c.mask), returns


def their_gae(c: Case) -> tuple[Tensor, Tensor]:
    advantages, returns = core.compute_gae_advantage_return(c.rewards, c.values, c.m, c.gamma, c.gae_lambda)
    return c.kept(advantages), c.kept(returns)


def reinforce(c: Case) -> Tensor:
    return masked_whiten(reward_to_go(c.rewards, c.mask, gamma=c.gamma), c.mask)


def their_reinforce(c: Case) -> Tensor:
    config = SimpleNamespace(gamma=c.gamma)
    return core.compute_reinforce_plus_plus_outcome_advantage(c.rewards, c.m, config=config)[0]


def grpo(c: Case) -> Tensor:
    return c.on_tokens(group_normalized(c.score, c.group))


def kl_in_reward(c: Case) -> tuple[Tensor, Tensor]:
    """Return rewards minus the KL term, and the next coefficient."""
    kl = kl_estimate(c.old, c.ref, estimator="k1")
    current = (c.kept(kl).sum(dim=1) / c.m.sum(dim=1).clamp(min=1)).mean()
    coef = adaptive_kl_step(c.coef, current, target=c.low, horizon=HORIZON, num_samples=len(c.score))
    return c.kept(c.rewards - c.coef * kl), torch.tensor(coef, dtype=torch.float64)


def their_kl_in_reward(c: Case) -> tuple[Tensor, Tensor]:
    controller = core.AdaptiveKLController(c.coef, c.low, HORIZON)
    tensors = {"response_mask": c.m, "token_level_scores": c.rewards, "old_log_probs": c.old, "ref_log_prob": c.ref}
    data, _ = apply_kl_penalty(DataProto.from_dict(tensors=tensors), controller, "kl")
    return c.kept(data.batch["token_level_rewards"]), torch.tensor(float(controller.value), dtype=torch.float64)


def probabilities(draw: Callable[[], Any]) -> Tensor:
    """Return the weights that a draw of rows passes to `torch.multinomial`, normalized to sum 1."""
    caught: list[Tensor] = []
    multinomial = torch.multinomial

    def catch(weights: Tensor, *arguments: Any, **settings: Any) -> Tensor:
        caught.append(weights.double() / weights.double().sum())
        return multinomial(weights, *arguments, **settings)

    torch.multinomial = catch
    try:
        draw()
    finally:
        torch.multinomial = multinomial
    return caught[0]


def filtered(method: str, size: float = 1.0) -> Callable[[Case], Tensor]:
    return lambda c: probabilities(lambda: reweight(size * c.score, method=method, power=2.0, generator=None))


def their_filtered(method: str, size: float = 1.0) -> Callable[[Case], Tensor]:
    def theirs(c: Case) -> Tensor:
        data = DataProto.from_dict(tensors={"token_level_scores": size * outcome_rewards(c)})
        return probabilities(lambda: core.compute_pf_ppo_reweight_data(data, method, 2.0))

    return theirs


def floored(c: Case) -> Tensor:
    weights = (1e-4 * c.score).square() + 1e-8
    return weights.double() / weights.double().sum()


COMPARISONS = (
    Comparison(
        what="whitened GAE, and returns",
        ours=whitened_gae,
        theirs=their_gae,
        tolerance=EPSILON,
        on=("plain", "holes", "empty rows"),
    ),
    Comparison(
        what="whitened GAE, and returns",
        ours=whitened_gae,
        theirs=their_gae,
        on=("one token",),
        known="whitening one token is an error; ours gives 0",
    ),
    Comparison(what="GRPO", ours=grpo, theirs=in_groups(core.compute_grpo_outcome_advantage)),
    Comparison(
        what="GRPO",
        ours=grpo,
        theirs=in_groups(core.compute_grpo_outcome_advantage),
        on=("equal scores",),
        known="rounding error in the mean of equal scores, divided by 1e-6; ours is exactly 0",
    ),
    Comparison(
        what="GRPO", ours=grpo, theirs=in_groups(core.compute_grpo_outcome_advantage), on=("lone row",), known=ALONE
    ),
    Comparison(
        what="GRPO, vectorised",
        ours=grpo,
        theirs=in_groups(core.compute_grpo_vectorized_outcome_advantage),
        tolerance=SINGLE,
    ),
    Comparison(
        what="Dr. GRPO",
        ours=lambda c: c.on_tokens(group_normalized(c.score, c.group, scale_by_std=False)),
        theirs=in_groups(core.compute_grpo_outcome_advantage, norm_adv_by_std_in_grpo=False),
    ),
    Comparison(
        what="RLOO",
        ours=lambda c: c.on_tokens(leave_one_out(c.score, c.group)),
        theirs=in_groups(core.compute_rloo_outcome_advantage),
    ),
    Comparison(
        what="RLOO",
        ours=lambda c: c.on_tokens(leave_one_out(c.score, c.group)),
        on=("lone row",),
        theirs=in_groups(core.compute_rloo_outcome_advantage),
        known=ALONE,
    ),
    Comparison(
        what="RLOO, vectorised",
        ours=lambda c: c.on_tokens(leave_one_out(c.score, c.group)),
        theirs=in_groups(core.compute_rloo_vectorized_outcome_advantage),
    ),
    Comparison(what="REINFORCE++", ours=reinforce, theirs=their_reinforce, tolerance=EPSILON),
    Comparison(
        what="REINFORCE++ with a baseline",
        ours=less_group_mean_whitened(lambda c: c.group),
        tolerance=EPSILON,
        theirs=in_groups(core.compute_reinforce_plus_plus_baseline_outcome_advantage),
    ),
    Comparison(
        what="ReMax, outcome rewards",
        ours=lambda c: c.on_tokens(c.score - c.greedy),
        theirs=lambda c: c.kept(core.compute_remax_outcome_advantage(outcome_rewards(c), c.greedy, c.m)[0]),
    ),
    Comparison(
        what="ReMax, rewards on every token",
        ours=lambda c: c.on_tokens(c.kept(c.rewards).sum(1) - c.greedy),
        theirs=lambda c: c.kept(core.compute_remax_outcome_advantage(c.rewards, c.greedy, c.m)[0]),
        known="sum of rewards from the token on, minus the baseline; ours: total reward of the row, minus the baseline",
        translated=lambda c: reward_to_go(c.rewards, c.mask, gamma=1.0) - c.on_tokens(c.greedy),
    ),
    Comparison(
        what="KL in the reward, and the next adaptive coefficient",
        ours=kl_in_reward,
        theirs=their_kl_in_reward,
        on=("empty rows",),
        tolerance=EPSILON,
    ),
    Comparison(what="adaptive KL coefficient", ours=adaptive, theirs=lambda c: adapted(core.AdaptiveKLController, c)),
    Comparison(
        what="PF-PPO, probabilities of pow, max_min, max_random",
        tolerance=EPSILON,
        ours=joined(*(filtered(method) for method in METHODS)),
        theirs=joined(*(their_filtered(method) for method in METHODS)),
    ),
    Comparison(
        what="PF-PPO, probabilities of pow, scores near 1e-4",
        ours=filtered("pow", 1e-4),
        theirs=their_filtered("pow", 1e-4),
        tolerance=EPSILON,
        translated=floored,
        known="adds 1e-8 to every weight, so small scores are sampled almost uniformly; ours depends on ratios only",
    ),
    Comparison(
        what="PF-PPO, probabilities of pow where all scores are 0",
        ours=filtered("pow", 0.0),
        theirs=their_filtered("pow", 0.0),
    ),
    *LOSSES,
    *OBJECTIVES,
)
