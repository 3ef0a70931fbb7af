"""Reward models in a plan of memory."""

from __future__ import annotations

from ippo_cli.config.rewards import rewards_of
from ippo_cli.config.schema import Config, ModelRewardConfig
from ippo_cli.models.reward_model import read_config, shape_of
from ippo_cli.planning.memory import Frozen, width_of


def frozen_reward_models(config: Config) -> tuple[Frozen, ...]:
    """Weights of reward models that lie on the ranks' own devices."""
    models = [
        (where, own.reward)
        for where, own in rewards_of(config)
        if isinstance(own.reward, ModelRewardConfig) and own.reward.device == "auto"
    ]
    return tuple(
        Frozen(
            name="reward model" if where == "reward" else f"{where.rpartition('.')[2]} reward",
            shape=shape_of(read_config(str(one.model), one.revision)),
            width=width_of(one.dtype),
        )
        for where, one in models
    )
