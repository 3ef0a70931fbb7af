"""Memory of reward models for the memory estimate."""

from __future__ import annotations

from ippo_cli.config.rewards import rewards_with_prefixes
from ippo_cli.config.schema import Config, ModelRewardConfig
from ippo_cli.models.reward_model import read_config, reward_model_shape
from ippo_cli.planning.memory import FrozenModel, bytes_per_weight


def frozen_reward_models(config: Config) -> tuple[FrozenModel, ...]:
    """The reward models on the ranks' devices."""
    models = [
        (where, own.reward)
        for where, own in rewards_with_prefixes(config)
        if isinstance(own.reward, ModelRewardConfig) and own.reward.device == "auto"
    ]
    return tuple(
        FrozenModel(
            name="reward model" if where == "reward" else f"{where.rpartition('.')[2]} reward",
            shape=reward_model_shape(read_config(str(model.model), model.revision)),
            bytes_per_weight=bytes_per_weight(model.dtype),
        )
        for where, model in models
    )
