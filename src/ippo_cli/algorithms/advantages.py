"""Advantage estimators, one per `algorithm.advantage`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs
from ippo_cli.algorithms.user_advantages import function_advantages
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Advantage, AlgorithmConfig, NormalizationScope, TurnValue
from ippo_cli.engine import distributed
from ippo_cli.formulas import (
    capability_advantages,
    gae,
    group_normalized,
    leave_one_out,
    place_scores,
    pool_values,
    reward_to_go,
    segment_gae,
    turn_gae,
)
from ippo_cli.types import Rollout

Estimator = Callable[[AdvantageInputs, AlgorithmConfig], AdvantageOutputs]
GroupFormula = Callable[[Tensor, Tensor, Tensor, AlgorithmConfig], Tensor]
"""Scores, groups and weights of scores, `[n]` each, to advantages `[n]`."""
K = TypeVar("K", bound=Hashable)


def gae_advantages(inputs: AdvantageInputs, config: AlgorithmConfig) -> AdvantageOutputs:
    """GAE from a critic; the critic's returns may use a separate lambda."""
    advantages, returns = _compute_gae(inputs, config, _actor_lambda(inputs, config))
    if config.critic_gae_lambda is not None:
        _, returns = _compute_gae(inputs, config, config.critic_gae_lambda)
    return AdvantageOutputs(advantages=advantages, returns=returns, usable=inputs.valid)


def reward_to_go_advantages(inputs: AdvantageInputs, config: AlgorithmConfig) -> AdvantageOutputs:
    """Discounted sum of rewards from each action on."""
    assert config.gamma is not None
    if inputs.is_by_turn:  # without values, GAE at lambda 1 is the sum of the later rewards
        to_go, _ = turn_gae(
            inputs.rewards,
            torch.zeros_like(inputs.rewards),
            inputs.mask,
            inputs.turn,
            gamma=config.gamma,
            gae_lambda=1.0,
            turn_value="first",
        )
    else:
        to_go = reward_to_go(inputs.rewards, inputs.mask, gamma=config.gamma)
    return AdvantageOutputs(advantages=to_go, returns=to_go, usable=inputs.valid)


def group_advantages(formula: GroupFormula) -> Estimator:
    """Compare each response with the others to its prompt, across ranks.

    Rows without a score are excluded; a row that remains alone in its group has no advantage.
    """

    def estimate(inputs: AdvantageInputs, config: AlgorithmConfig) -> AdvantageOutputs:
        return _compare_groups(formula, [inputs], config)[0]

    return estimate


def _compare_groups(
    formula: GroupFormula, agents: Sequence[AdvantageInputs], config: AlgorithmConfig
) -> list[AdvantageOutputs]:
    """Compare each response with those of all given rows to its prompt, across ranks. Collective."""
    own = [row_scores(inputs) for inputs in agents]
    rows = (
        torch.cat(own),
        torch.cat([inputs.group for inputs in agents]),
        torch.cat([inputs.valid for inputs in agents]),
        torch.cat([torch.full_like(score, inputs.capability) for score, inputs in zip(own, agents, strict=True)]),
    )
    scores, groups, valid, weights = (distributed.all_gather_rows(part) for part in rows)
    _, slots = torch.unique(groups, return_inverse=True)
    sizes = torch.zeros_like(slots).scatter_add(0, slots, valid.long())
    usable = valid & (sizes[slots] > 1)
    advantages = torch.zeros_like(scores)
    advantages[usable] = formula(scores[usable], groups[usable], weights[usable], config)
    here = distributed.local_row_slice(torch.cat(own))
    counts = [len(score) for score in own]
    results = zip(agents, advantages[here].split(counts), own, usable[here].split(counts), strict=True)
    return [_broadcast_rows(*result) for result in results]


def baseline_advantages(inputs: AdvantageInputs, config: AlgorithmConfig) -> AdvantageOutputs:
    """Score of each response minus its baseline: that of the greedy response, or the mean of the agent's role."""
    score = row_scores(inputs)
    return _broadcast_rows(inputs, score - inputs.baseline, score, inputs.valid)


def monte_carlo_advantages(inputs: AdvantageInputs, config: AlgorithmConfig) -> AdvantageOutputs:
    """GAE over the segments between states with a Monte-Carlo value.

    Rows of which the first state has no value are excluded.
    """
    assert config.gamma is not None
    assert config.gae_lambda is not None
    advantages, returns = segment_gae(
        inputs.rewards, inputs.values, inputs.mask, inputs.starts, gamma=config.gamma, gae_lambda=config.gae_lambda
    )
    is_first = inputs.mask & (inputs.mask.cumsum(dim=1) == 1)
    usable = inputs.valid & (inputs.starts & is_first).any(dim=1)
    return AdvantageOutputs(advantages=advantages, returns=returns, usable=usable)


def turn_group_advantages(inputs: AdvantageInputs, config: AlgorithmConfig) -> AdvantageOutputs:
    """Compare each turn's return with those of the other responses to the same state.

    Turns without a usable return are excluded; a turn that remains alone in its group has no advantage.
    """
    assert inputs.turn_groups is not None
    returns, label = inputs.turn_groups.returns, inputs.turn_groups.label
    usable = (label >= 0) & returns.isfinite() & inputs.valid[:, None]
    _, slots = torch.unique(label, return_inverse=True)
    sizes = torch.zeros_like(slots.flatten()).scatter_add(0, slots.flatten(), usable.long().flatten())
    usable &= sizes[slots] > 1
    advantages = torch.zeros_like(returns)
    advantages[usable] = group_normalized(returns[usable], label[usable], scale_by_std=bool(config.scale_by_std))
    turn = inputs.turn.clamp(min=0)
    tokens = usable.gather(1, turn) & inputs.mask
    return AdvantageOutputs(
        advantages=torch.where(tokens, advantages.gather(1, turn), 0.0),
        returns=torch.where(tokens, returns.gather(1, turn), 0.0),
        usable=inputs.valid & usable.any(dim=1),
        usable_tokens=tokens,
    )


def zero_advantages(inputs: AdvantageInputs, config: AlgorithmConfig) -> AdvantageOutputs:
    """No advantages: other terms of the loss train the policy, such as the KL to a teacher."""
    zeros = torch.zeros_like(inputs.rewards)
    return AdvantageOutputs(advantages=zeros, returns=zeros, usable=inputs.valid)


def _normalize_group(score: Tensor, group: Tensor, weight: Tensor, config: AlgorithmConfig) -> Tensor:
    if config.cross_agent.capability_window is None:
        return group_normalized(score, group, scale_by_std=bool(config.scale_by_std))
    return capability_advantages(score, group, weight, scale_by_std=bool(config.scale_by_std))


def _leave_one_out(score: Tensor, group: Tensor, weight: Tensor, config: AlgorithmConfig) -> Tensor:
    return leave_one_out(score, group)


# Requirements of each: see the properties of `Advantage`.
ADVANTAGES: dict[Advantage, Estimator] = {
    Advantage.gae: gae_advantages,
    Advantage.reward_to_go: reward_to_go_advantages,
    Advantage.group: group_advantages(_normalize_group),
    Advantage.leave_one_out: group_advantages(_leave_one_out),
    Advantage.greedy_baseline: baseline_advantages,
    Advantage.role_baseline: baseline_advantages,
    Advantage.monte_carlo: monte_carlo_advantages,
    Advantage.turn_group: turn_group_advantages,
    Advantage.function: function_advantages,
    Advantage.none: zero_advantages,
}


def compute_advantages(
    inputs: Mapping[K, AdvantageInputs], config: AlgorithmConfig, compared: Sequence[Sequence[K]] = ()
) -> dict[K, AdvantageOutputs]:
    """The advantages of each set of rows, from these rows alone; groups have the rows of all sets that are `compared`.

    At `normalization_scope=team` these are all sets. Collective.
    """
    if config.advantage is Advantage.group and config.normalization_scope is NormalizationScope.team:
        compared = [list(inputs)]
    if not compared or not config.advantage.needs_group:
        return {name: ADVANTAGES[config.advantage](own, config) for name, own in inputs.items()}
    formula = _normalize_group if config.advantage is Advantage.group else _leave_one_out
    outputs: dict[K, AdvantageOutputs] = {}
    for keys in compared:
        outputs |= zip(keys, _compare_groups(formula, [inputs[key] for key in keys], config), strict=True)
    return {key: outputs[key] for key in inputs}


def row_scores(inputs: AdvantageInputs) -> Tensor:
    """Sum of all rewards of each row, `[B]`."""
    return torch.where(inputs.mask, inputs.rewards, 0.0).sum(dim=1)


def turn_values(values: Tensor, final_values: Tensor, rollout: Rollout, config: AlgorithmConfig) -> Tensor:
    """The value of each action token's turn, `[B, R]`, as `turn_value` says; gradients flow."""
    return pool_values(
        substitute_final_values(values, final_values, rollout, config),
        rollout.response_mask,
        rollout.turn,
        turn_value=_turn_pooling(config),
    )


def substitute_final_values(values: Tensor, final_values: Tensor, rollout: Rollout, config: AlgorithmConfig) -> Tensor:
    """At `turn_value=post`, replace the value of the last token by the value after the response."""
    if config.turn_value is not TurnValue.post:
        return values
    if bool((rollout.turn > 0).any()):
        raise ConfigError("algorithm.turn_value=post", "supports responses of one turn only", "use first")
    last = place_scores(torch.ones_like(final_values)[:, None], rollout.response_mask, rollout.turn).bool()
    return torch.where(last, final_values[:, None], values)


def _compute_gae(inputs: AdvantageInputs, config: AlgorithmConfig, gae_lambda: float | Tensor) -> tuple[Tensor, Tensor]:
    assert config.gamma is not None
    if not inputs.is_by_turn:
        return gae(inputs.rewards, inputs.values, inputs.mask, gamma=config.gamma, gae_lambda=gae_lambda)
    return turn_gae(
        inputs.rewards,
        inputs.values,
        inputs.mask,
        inputs.turn,
        gamma=config.gamma,
        gae_lambda=gae_lambda,
        turn_value=_turn_pooling(config),
    )


def _turn_pooling(config: AlgorithmConfig) -> str:
    """The pooling of a turn's values; `after` pools as final, since its value replaces that of the last token."""
    assert config.turn_value is not None
    return "final" if config.turn_value is TurnValue.post else config.turn_value.value


def _actor_lambda(inputs: AdvantageInputs, config: AlgorithmConfig) -> float | Tensor:
    """One lambda, or one for each row: `max(0, 1 - 1 / (alpha * actions))` (VAPO, arXiv 2504.05118)."""
    if config.length_adaptive_alpha is None:
        assert config.gae_lambda is not None
        return config.gae_lambda
    own = inputs.mask.sum(dim=1)
    actions = torch.where(inputs.mask, inputs.turn, -1).amax(dim=1) + 1 if inputs.is_by_turn else own
    return (1.0 - 1.0 / (config.length_adaptive_alpha * actions.clamp(min=1))).clamp(min=0.0)


def _broadcast_rows(inputs: AdvantageInputs, advantages: Tensor, score: Tensor, usable: Tensor) -> AdvantageOutputs:
    """Broadcast one number per row to each of its action tokens."""
    own = inputs.mask.to(advantages.dtype)
    return AdvantageOutputs(advantages=advantages[:, None] * own, returns=score[:, None] * own, usable=usable)
