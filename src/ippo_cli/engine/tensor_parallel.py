"""Tensor parallelism: linear maps of a module split over the ranks of a group, by DeepSpeed's AutoTP.

An engine splits the maps that the model's own plan in transformers names (`base_model_tp_plan`): queries, keys, values
and the first maps of feed-forward layers by output, the maps after them by input. The embedding and the head stay
whole. Ranks of a group run the same rows in training; elsewhere the whole maps are gathered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

SPLIT_STYLES = {"colwise": "column", "rowwise": "row"}
"""Styles of transformers that split a linear map, with DeepSpeed's names."""

SUMMED = "replicated_with_grad_allreduce"
"""Style of whole parameters that are applied to the heads of one rank, such as norms of queries: gradients are summed.
"""

WHOLE_STYLES = ("embedding_rowwise", "colwise_rep", "colwise_gather_output")
"""Styles of embeddings and heads, which stay whole here."""


def model_plan(backbone: PreTrainedModel) -> dict[str, str]:
    """The plan of a model without its head: style by pattern of module names; empty if its family has none."""
    return dict(getattr(backbone.config.get_text_config(decoder=True), "base_model_tp_plan", None) or {})


def unsupported_styles(plan: Mapping[str, str]) -> list[str]:
    """The styles of a model's plan that cannot be used here."""
    return sorted(set(plan.values()) - {*SPLIT_STYLES, SUMMED, *WHOLE_STYLES})


def tensor_parallel_config(ranks: int, plan: Mapping[str, str]) -> dict[str, Any]:
    """DeepSpeed's section `tensor_parallel` for a model's plan: by pattern of module names, the style."""
    specs: list[dict[str, Any]] = []
    for pattern, style in plan.items():
        names = [_weight_pattern(pattern)]
        if style in SPLIT_STYLES:
            specs.append({"patterns": names, "partition_type": SPLIT_STYLES[style]})
        elif style == SUMMED:
            specs.append({"patterns": names, "partition_type": "skip", "grad_allreduce": True})
    specs.append({"patterns": [".*"], "partition_type": "skip"})
    return {"autotp_size": ranks, "partition_config": {"use_default_specs": False, "layer_specs": specs}}


def _weight_pattern(pattern: str) -> str:
    """The regular expression for weights of `layers.*.self_attn.q_proj`, below any prefix."""
    return r"(.*\.)?" + r"\.".join(r"\d+" if part == "*" else part for part in pattern.split(".")) + r"\.weight$"


def count_split_elements(model: nn.Module, plan: Mapping[str, str]) -> int:
    """Elements of the parameters that a plan splits: weights, and biases of maps that are split by output."""
    by_style = {style: [_weight_pattern(key) for key, of in plan.items() if of == style] for style in SPLIT_STYLES}
    total = 0
    for name, parameter in model.named_parameters():
        weight = re.sub(r"bias$", "weight", name)
        for style, patterns in by_style.items():
            is_split = any(re.match(pattern, weight) for pattern in patterns)
            if is_split and (style == "colwise" or not name.endswith("bias")):
                total += parameter.numel()
    return total


def split_layers(module: nn.Module) -> list[Any]:
    """The linear maps of a module that DeepSpeed has split."""
    return [part for part in module.modules() if hasattr(part, "_partition_sizes")]


@contextmanager
def gather_layers(module: nn.Module) -> Iterator[None]:
    """Give a rank the whole linear maps: their parameters, and forwards without communication. Collective.

    The shards remain in memory, and are in place again afterwards.
    """
    layers = split_layers(module)
    shards: list[tuple[nn.Parameter, Tensor]] = []
    try:
        for layer in layers:
            shards += [(parameter, parameter.data) for parameter in layer.parameters(recurse=False)]
            layer.gather_params([layer.weight, layer.bias])
            vars(layer)["forward"] = partial(_apply_whole, layer)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)
        for parameter, shard in shards:
            parameter.data = shard


def _apply_whole(layer: Any, states: Tensor) -> Tensor:
    return nn.functional.linear(states, layer.weight, layer.bias)
