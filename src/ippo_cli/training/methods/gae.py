"""GAE from a critic (`algorithm.advantage=gae`)."""

from __future__ import annotations

import torch
from torch import Tensor

from ippo_cli.algorithms.advantages import turn_pooling
from ippo_cli.algorithms.estimator import Estimator
from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs
from ippo_cli.config.schema import AlgorithmConfig
from ippo_cli.formulas import gae, turn_gae


class Gae(Estimator):
    """GAE by token or by turn; the critic's returns may use a separate lambda."""

    name = "gae"

    def estimate_rows(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        config = self.config
        advantages, returns = _compute_gae(inputs, config, _actor_lambda(inputs, config))
        if config.critic_gae_lambda is not None:
            _, returns = _compute_gae(inputs, config, config.critic_gae_lambda)
        return AdvantageOutputs(advantages=advantages, returns=returns, usable=inputs.valid)


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
        turn_value=turn_pooling(config),
    )


def _actor_lambda(inputs: AdvantageInputs, config: AlgorithmConfig) -> float | Tensor:
    """One lambda, or one for each row: `max(0, 1 - 1 / (alpha * actions))` (VAPO, arXiv 2504.05118)."""
    if config.length_adaptive_alpha is None:
        assert config.gae_lambda is not None
        return config.gae_lambda
    own = inputs.mask.sum(dim=1)
    actions = torch.where(inputs.mask, inputs.turn, -1).amax(dim=1) + 1 if inputs.is_by_turn else own
    return (1.0 - 1.0 / (config.length_adaptive_alpha * actions.clamp(min=1))).clamp(min=0.0)
