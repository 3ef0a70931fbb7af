"""What several advantage estimators compute: scores of rows, and values of turns."""

from __future__ import annotations

import torch
from torch import Tensor

from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AlgorithmConfig, TurnValue
from ippo_cli.formulas import place_scores, pool_values
from ippo_cli.types import Rollout


def row_scores(inputs: AdvantageInputs) -> Tensor:
    """Sum of all rewards of each row, `[B]`."""
    return torch.where(inputs.mask, inputs.rewards, 0.0).sum(dim=1)


def broadcast_rows(inputs: AdvantageInputs, advantages: Tensor, score: Tensor, usable: Tensor) -> AdvantageOutputs:
    """Broadcast one number per row to each of its action tokens."""
    own = inputs.mask.to(advantages.dtype)
    return AdvantageOutputs(advantages=advantages[:, None] * own, returns=score[:, None] * own, usable=usable)


def turn_values(values: Tensor, final_values: Tensor, rollout: Rollout, config: AlgorithmConfig) -> Tensor:
    """The value of each action token's turn, `[B, R]`, as `turn_value` says; gradients flow."""
    return pool_values(
        substitute_final_values(values, final_values, rollout, config),
        rollout.response_mask,
        rollout.turn,
        turn_value=turn_pooling(config),
    )


def substitute_final_values(values: Tensor, final_values: Tensor, rollout: Rollout, config: AlgorithmConfig) -> Tensor:
    """At `turn_value=post`, replace the value of the last token by the value after the response."""
    if config.turn_value is not TurnValue.post:
        return values
    if bool((rollout.turn > 0).any()):
        raise ConfigError("algorithm.turn_value=post", "supports responses of one turn only", "use first")
    last = place_scores(torch.ones_like(final_values)[:, None], rollout.response_mask, rollout.turn).bool()
    return torch.where(last, final_values[:, None], values)


def turn_pooling(config: AlgorithmConfig) -> str:
    """The pooling of a turn's values; `after` pools as final, since its value replaces that of the last token."""
    assert config.turn_value is not None
    return "final" if config.turn_value is TurnValue.post else config.turn_value.value
