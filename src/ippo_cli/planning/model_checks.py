"""Checks of models before weights are loaded: whether a group of ranks can split them, and their router loss."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AlgorithmConfig, DeepspeedConfig
from ippo_cli.engine.tensor_parallel import model_plan, unsupported_styles
from ippo_cli.models.load import backbone_of
from ippo_cli.models.packing import supports_attention_interface

POSITION_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Rotary embeddings with frequencies that depend on the largest position of a pass, which differs between ranks."""


def check_model_parallel(lm: PreTrainedModel, deepspeed: DeepspeedConfig, model: str) -> None:
    """Raise `ConfigError` if groups of ranks cannot split a trained model, given without weights, or its rows.

    `model`: its setting, for errors.
    """
    if deepspeed.sequence_parallel > 1:
        _check_sequence_parallel(lm, deepspeed.sequence_parallel, model)
    if deepspeed.tensor_parallel > 1:
        _check_tensor_parallel(lm, deepspeed.tensor_parallel, model)


def _check_tensor_parallel(lm: PreTrainedModel, ranks: int, model: str) -> None:
    setting, backbone = f"deepspeed.tensor_parallel={ranks}", backbone_of(lm)
    plan = model_plan(backbone)
    unsupported = unsupported_styles(plan)
    if unsupported or not plan:
        why = f"has styles that are not supported ({', '.join(unsupported)})" if plan else "does not exist"
        raise ConfigError(
            setting,
            f"splits linear maps by the plan of transformers for {type(backbone).__name__} ({model}), which {why}",
            "use deepspeed.tensor_parallel=1, or a dense model of another family, such as Llama, Qwen3 or Mistral",
        )
    text: Any = lm.config.get_text_config(decoder=True)
    _check_heads(text, ranks, setting, model)
    if text.intermediate_size % ranks:
        raise ConfigError(
            setting,
            f"does not divide intermediate_size={text.intermediate_size} of {model}",
            "use a divisor of it, or deepspeed.tensor_parallel=1",
        )


def _check_sequence_parallel(lm: PreTrainedModel, ranks: int, model: str) -> None:
    setting, text = f"deepspeed.sequence_parallel={ranks}", lm.config.get_text_config(decoder=True)
    if not supports_attention_interface(backbone_of(lm)):
        raise ConfigError(
            setting,
            f"splits packed rows, and {type(backbone_of(lm)).__name__} ({model}) does not support them: all its layers "
            "must call attention through the attention interface of transformers",
            "use deepspeed.sequence_parallel=1, or a model of another family, such as Llama, Qwen3 or Mistral",
        )
    _check_heads(text, ranks, setting, model)
    parameters = getattr(text, "rope_parameters", None) or {}
    for each in [value for value in parameters.values() if isinstance(value, dict)] or [parameters]:
        if each.get("rope_type") in POSITION_DEPENDENT_ROPE:
            raise ConfigError(
                setting,
                f"splits rows, and rotary frequencies of {model} (rope_type={each['rope_type']}) depend on the length "
                "of the whole row",
                "use deepspeed.sequence_parallel=1",
            )


def _check_heads(text: Any, ranks: int, setting: str, model: str) -> None:
    queries, keys = heads = attention_heads(text)
    if any(count % ranks for count in heads):
        common = [str(size) for size in range(1, keys + 1) if not any(count % size for count in heads)]
        raise ConfigError(
            setting,
            f"does not divide the heads of {model}: {queries} for queries, {keys} for keys and values",
            f"use one of {' '.join(common)}",
        )


def attention_heads(text: Any) -> tuple[int, int]:
    """Numbers of query heads, and of heads of keys and values."""
    queries = int(text.num_attention_heads)
    if getattr(text, "multi_query", False):  # Falcon, StarCoder
        return queries, 1
    return queries, int(getattr(text, "num_key_value_heads", None) or queries)


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
