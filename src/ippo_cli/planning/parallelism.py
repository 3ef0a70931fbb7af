"""Checks of models that a group of ranks splits, before weights are loaded."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from ippo_cli.config.errors import ConfigError
from ippo_cli.models.load import backbone_of
from ippo_cli.models.packing import supports_attention_interface

POSITION_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Rotary embeddings whose frequencies depend on the largest position of a forward pass, which differs between ranks."""


def check_sequence_parallel(lm: PreTrainedModel, ranks: int, model: str) -> None:
    """Raise `ConfigError` if `ranks` ranks cannot split the rows of a model, given without weights.

    `model`: its setting, for errors.
    """
    if ranks == 1:
        return
    setting, text = f"deepspeed.sequence_parallel={ranks}", lm.config.get_text_config(decoder=True)
    if not supports_attention_interface(backbone_of(lm)):
        raise ConfigError(
            setting,
            f"splits packed rows, and {type(backbone_of(lm)).__name__} ({model}) does not support them: all its layers "
            "must call attention through the attention interface of transformers",
            "use deepspeed.sequence_parallel=1, or a model of another family, such as Llama, Qwen3 or Mistral",
        )
    heads = attention_heads(text)
    if any(count % ranks for count in heads):
        queries, keys = heads
        common = [str(size) for size in range(1, keys + 1) if not any(count % size for count in heads)]
        raise ConfigError(
            setting,
            f"does not divide the heads of {model}: {queries} for queries, {keys} for keys and values",
            f"use one of {' '.join(common)}",
        )
    parameters = getattr(text, "rope_parameters", None) or {}
    for each in [value for value in parameters.values() if isinstance(value, dict)] or [parameters]:
        if each.get("rope_type") in POSITION_DEPENDENT_ROPE:
            raise ConfigError(
                setting,
                f"splits rows, and rotary frequencies of {model} (rope_type={each['rope_type']}) depend on the length "
                "of the whole row",
                "use deepspeed.sequence_parallel=1",
            )


def attention_heads(text: Any) -> tuple[int, int]:
    """Numbers of query heads, and of heads of keys and values."""
    queries = int(text.num_attention_heads)
    if getattr(text, "multi_query", False):  # Falcon, StarCoder
        return queries, 1
    return queries, int(getattr(text, "num_key_value_heads", None) or queries)
