"""Weights of the losses of agents that share a policy (`team.role_balance`), and their state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from ippo_cli.agents.grad_norms import GradNorms
from ippo_cli.config.role_gradients import find_shared_policy, role_balance
from ippo_cli.config.schema import Config, RoleBalance, SharedPolicyConfig
from ippo_cli.formulas import equal_norm_weights, gradnorm_weights

WEIGHT_LIMIT = 10.0  # weights are at least its inverse
NORM_DECAY = 0.5  # weight of earlier measurements in the running mean of norms
GRADNORM_RATE = 0.025  # learning rate of the weights, of the paper
MIN_LOSS = 1e-3  # of an agent with the best score


@dataclass(frozen=True)
class RoleState:
    """The state of one learner's agents, by agent; checkpoints store it."""

    weights: dict[str, float] = field(default_factory=dict)  # empty before the first measurement
    mean_norms: dict[str, float] = field(default_factory=dict)
    first_losses: dict[str, float] = field(default_factory=dict)  # of GradNorm
    recent_norms: dict[str, list[float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Values of JSON."""
        return asdict(self)

    def record(self, norms: Mapping[str, float]) -> tuple[RoleState, dict[str, bool]]:
        """The state after a measurement, and by agent whether its norm is a spike, see `GradNorms`."""
        recent = {name: GradNorms(self.recent_norms.get(name, ())) for name in norms}
        spikes = {name: math.isfinite(norm) and recent[name].record(norm) for name, norm in norms.items()}
        return replace(self, recent_norms={name: own.recent for name, own in recent.items()}), spikes


class Balance:
    """Computes the weights of agents that share a policy; with `team.role_balance=none` there are none."""

    def __init__(self, config: Config) -> None:
        self.kind = role_balance(config)
        team: SharedPolicyConfig | None = find_shared_policy(config)
        self._alpha = None if team is None else team.gradnorm_alpha
        self._best_score = None if team is None else team.gradnorm_best_score

    def update(self, state: RoleState, norms: Mapping[str, float], scores: Mapping[str, float]) -> RoleState:
        """The state with the weights after a measurement of unweighted `norms`; `scores`: mean scores by agent.

        Norms that are not finite do not change the state.
        """
        if self.kind is RoleBalance.none or not all(map(math.isfinite, norms.values())):
            return state
        if self.kind is RoleBalance.equal_norm:
            return _equalize_norms(state, norms)
        return self._balance_rates(state, norms, scores)

    def _balance_rates(self, state: RoleState, norms: Mapping[str, float], scores: Mapping[str, float]) -> RoleState:
        assert self._alpha is not None
        assert self._best_score is not None
        losses = {
            name: max(self._best_score - score, MIN_LOSS) for name, score in scores.items() if math.isfinite(score)
        }
        first = losses | state.first_losses
        ratios = [losses[name] / first[name] if name in losses else 1.0 for name in norms]
        weights = gradnorm_weights(
            torch.tensor([state.weights.get(name, 1.0) for name in norms], dtype=torch.float64),
            torch.tensor([*norms.values()], dtype=torch.float64),
            torch.tensor(ratios, dtype=torch.float64),
            alpha=self._alpha,
            rate=GRADNORM_RATE,
            limit=WEIGHT_LIMIT,
        )
        return replace(state, weights=_by_name([*norms], weights.tolist()), first_losses=first)


def _equalize_norms(state: RoleState, norms: Mapping[str, float]) -> RoleState:
    """Weights from the running means of the norms; an agent without a gradient keeps its mean."""
    means = {
        name: NORM_DECAY * state.mean_norms[name] + (1.0 - NORM_DECAY) * norm if name in state.mean_norms else norm
        for name, norm in norms.items()
        if norm > 0
    }
    means = state.mean_norms | means
    known = torch.tensor([means.get(name, 0.0) for name in norms], dtype=torch.float64)
    weights = equal_norm_weights(known, limit=WEIGHT_LIMIT)
    return replace(state, weights=_by_name([*norms], weights.tolist()), mean_norms=means)


def _by_name(names: Sequence[str], numbers: Sequence[float]) -> dict[str, float]:
    return dict(zip(names, numbers, strict=True))
