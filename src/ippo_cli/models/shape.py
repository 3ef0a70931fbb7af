"""The sizes of a model from its `config.json`; reads and creates no weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ippo_cli.config.adapters import rank_for_module, resolve_initial_settings
from ippo_cli.config.model_args import check_model_config_overrides
from ippo_cli.config.schema import LoraConfig, SeparateCriticConfig, TrainedCriticConfig
from ippo_cli.engine.tensor_parallel import count_split_elements, model_plan
from ippo_cli.models.actor import format_model_setting
from ippo_cli.models.critic import ValueHead, ValueHeadConfig, configured_head_keys, hidden_width
from ippo_cli.models.freezing import frozen_names
from ippo_cli.models.linear_maps import Widths, base_name, linear_maps, other_modules, targeted_maps
from ippo_cli.models.load import backbone_of, load_error, missing_files_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Inputs of memory estimates."""

    sizes: tuple[int, ...]  # elements of each parameter
    layers: int
    hidden: int  # width of the residual stream
    intermediate_size: int  # width of the feed-forward layers
    kv_width: int  # width of the keys of one token and layer, and of its values
    vocabulary: int
    head_size: int = 0  # width of one attention head; 0 without attention, or with latent attention
    has_latent_attention: bool = False
    is_stateful: bool = False  # whether layers carry a state over tokens, as in state-space models
    window: int | None = None  # smallest sliding window of its layers in tokens; None for full attention
    longrope_threshold: int | None = (
        None  # row length in tokens from which rotary frequencies change for the whole forward
    )
    quantized_bytes: float | None = None  # of all weights, if linear maps are quantised
    split_elements: int = 0  # elements of the linear maps that tensor parallelism splits
    frozen_parameters: int = 0  # elements of a trained model that keep their initial values
    adapter: tuple[int, ...] | None = None  # sizes of the trained parameters of an adapter (and a head)

    @property
    def parameters(self) -> int:
        """Number of parameters of the model; for an adapter, of its base."""
        return sum(self.sizes)

    @property
    def saved_parameters(self) -> int:
        """Number of parameters of the engine's module."""
        return sum(self.sizes if self.adapter is None else self.adapter)

    @property
    def trained_parameters(self) -> int:
        return self.saved_parameters - self.frozen_parameters

    def count_smaller_than(self, threshold: int) -> int:
        """Elements in parameters of at most `threshold` elements: those that ZeRO stage 3 does not shard."""
        return sum(size for size in self.sizes if size <= threshold)


def load_config(model: str, revision: str | None, values: Mapping[str, Any] | None = None) -> PreTrainedConfig:
    """The configuration of a folder or hub id, with `values` of its keys. Raises `ConfigError` for unknown keys."""
    options = {"revision": revision, "trust_remote_code": False, "return_unused_kwargs": True}
    config: Any
    unused: Any
    try:
        config, unused = AutoConfig.from_pretrained(model, **options, **(values or {}))
    except Exception as error:
        raise load_error(
            format_model_setting(model), "causal language model", error, missing_files_reason(Path(model))
        ) from error
    unknown = {key: value for key, value in unused.items() if key in (values or {})}
    check_model_config_overrides(values or {}, unknown, model, type(config).__name__)
    return config


def quantized_shape(shape: ModelShape, lm: PreTrainedModel, bits: int, width: int) -> ModelShape:
    """The shape of a base with quantised linear maps; embedding, norms and head keep `width` bytes per weight.

    4 bits add a float32 scale for every 64 weights; the row scales of 8 bits are neglected.
    """
    head = lm.get_output_embeddings()
    linear = [part for part in lm.modules() if isinstance(part, nn.Linear) and part is not head]
    elements = sum(part.in_features * part.out_features for part in linear)
    scales = 4 / 64 if bits == 4 else 0.0
    return replace(shape, quantized_bytes=width * (shape.parameters - elements) + (bits / 8 + scales) * elements)


def empty_model(config: PreTrainedConfig) -> PreTrainedModel:
    """A causal language model without memory for its weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def empty_backbone(config: PreTrainedConfig) -> PreTrainedModel:
    """A model without a head, and without memory for its weights."""
    with torch.device("meta"):
        return AutoModel.from_config(config)


def actor_shape(lm: PreTrainedModel) -> ModelShape:
    """Shape of a causal language model."""
    return _make_shape(lm.config, lm, backbone_of(lm))


def add_value_head(shape: ModelShape, config: PreTrainedConfig, critic: TrainedCriticConfig) -> ModelShape:
    """The shape with a critic's value head on it."""
    with torch.device("meta"):
        head = ValueHead(ValueHeadConfig(hidden_width(config), **configured_head_keys(critic)))
    if shape.adapter is not None:
        return replace(shape, adapter=shape.adapter + _parameter_sizes(head))
    return replace(shape, sizes=shape.sizes + _parameter_sizes(head))


def add_adapter(
    shape: ModelShape,
    lm: PreTrainedModel,
    config: LoraConfig,
    setting: str,
    model: str,
    *,
    earlier: str | None = None,
    key: str = "",
) -> ModelShape:
    """The shape with an adapter on its language model, possibly from an `earlier` one. Raises `ConfigError` or
    `PreflightError` if they are incompatible.
    """
    known, others = linear_maps(lm), other_modules(lm)

    def widths_of_targets(config: LoraConfig) -> dict[str, Widths]:
        return targeted_maps(known, others, config, setting, base_name(model))

    config = resolve_initial_settings(config, earlier, key, lambda: widths_of_targets(config))
    maps = widths_of_targets(config)
    sizes = tuple(rank_for_module(config, path) * width for path, widths in maps.items() for width in widths)
    if config.use_dora:
        sizes += tuple(out for _, out in maps.values())
    return replace(shape, adapter=sizes)


def model_shape(model: PreTrainedModel) -> ModelShape:
    """Shape of a model with any head."""
    return _make_shape(model.config, model, backbone_of(model))


def critic_shape(lm: PreTrainedModel, critic: SeparateCriticConfig) -> ModelShape:
    """Shape of a critic: the backbone of a causal language model, and a value head. Raises `ConfigError` for patterns
    of `critic.freeze` that select no parameters.
    """
    shape = add_value_head(_make_shape(lm.config, backbone_of(lm), backbone_of(lm)), lm.config, critic)
    sizes = {f"backbone.{name}": parameter.numel() for name, parameter in backbone_of(lm).named_parameters()}
    frozen = frozen_names([*sizes, "value_head.out.weight"], critic.freeze)
    return replace(shape, frozen_parameters=sum(sizes[name] for name in frozen))


def _parameter_sizes(module: nn.Module) -> tuple[int, ...]:
    return tuple(parameter.numel() for parameter in module.parameters())


def _make_shape(config: PreTrainedConfig, model: PreTrainedModel, backbone: PreTrainedModel) -> ModelShape:
    text: Any = config.get_text_config(decoder=True)
    heads = getattr(text, "num_attention_heads", None) or 1
    head_size = getattr(text, "head_dim", None) or math.ceil(text.hidden_size / heads)
    is_latent = getattr(text, "kv_lora_rank", None) is not None
    has_attention = getattr(text, "num_attention_heads", None) is not None and not is_latent
    return ModelShape(
        sizes=_parameter_sizes(model),
        head_size=head_size if has_attention else 0,
        has_latent_attention=is_latent,
        is_stateful=backbone._is_stateful or not all(isinstance(layer, DynamicLayer) for layer in _cache_layers(text)),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate_size=_inner_width(text),
        kv_width=head_size * (getattr(text, "num_key_value_heads", None) or heads),
        vocabulary=text.vocab_size,
        window=min((layer.sliding_window for layer in _sliding_window_layers(text)), default=None),
        longrope_threshold=_longrope_threshold(text),
        split_elements=count_split_elements(backbone, model_plan(backbone)),
    )


def _sliding_window_layers(text: PreTrainedConfig) -> Iterator[DynamicSlidingWindowLayer]:
    yield from (layer for layer in _cache_layers(text) if isinstance(layer, DynamicSlidingWindowLayer))


def _cache_layers(text: PreTrainedConfig) -> Sequence[Any]:
    return DynamicCache(config=text).layers


def _longrope_threshold(text: Any) -> int | None:
    parameters = getattr(text, "rope_parameters", None) or {}
    by_layer_type = [value for value in parameters.values() if isinstance(value, dict)]
    limits = [
        each.get("original_max_position_embeddings")
        for each in by_layer_type or [parameters]
        if each.get("rope_type") == "longrope"
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def _inner_width(text: Any) -> int:
    """The name differs by family; the default is four times the hidden width."""
    for name in ("intermediate_size", "n_inner", "ffn_dim"):
        if isinstance(width := getattr(text, name, None), int):
            return width
    return 4 * text.hidden_size
