"""Checks, before a model loads, of the router loss of mixtures of experts."""

from __future__ import annotations

from transformers import PreTrainedModel

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AlgorithmConfig, DeepspeedConfig
from ippo_cli.models.load import backbone_of


def check_router_loss(
    lm: PreTrainedModel, algorithm: AlgorithmConfig, deepspeed: DeepspeedConfig, model: str
) -> str | None:
    """Raise `ConfigError` if a model, given without weights, has no router loss but `router_loss_coef` needs one.

    Returns a warning if the model's own configuration asks for a router loss that is left out. `model`: its setting.
    """
    config = lm.config.get_text_config()
    own = getattr(config, "router_aux_loss_coef", None)
    if not algorithm.router_loss_coef:
        if own and getattr(config, "output_router_logits", False):
            return (
                f"{model}: its config.json asks for a router loss (output_router_logits), which is left out; set "
                f"algorithm.router_loss_coef={own:g} to add it"
            )
        return None
    setting = f"algorithm.router_loss_coef={algorithm.router_loss_coef:g}"
    records = getattr(backbone_of(lm), "_can_record_outputs", None) or {}
    if own is None or "router_logits" not in records:
        raise ConfigError(
            setting,
            f"needs a mixture of experts with a load-balancing loss, and {type(lm).__name__} of {model} has none",
            "set it to 0",
        )
    if deepspeed.ranks_per_group > 1:
        raise ConfigError(
            setting,
            "is not supported on groups of ranks that share rows or weights",
            "set deepspeed.sequence_parallel=1 deepspeed.tensor_parallel=1",
        )
    return None
