"""Estimated and measured activation memory agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel, MistralConfig, MistralModel, PreTrainedModel

from ippo_cli.models import packing
from ippo_cli.models.packing import enable_packing, last_hidden_states, pack
from ippo_cli.models.shape import model_shape
from ippo_cli.planning.pass_memory import activation_bytes

COMMON: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
}
LENGTHS = [300] * 4


def kept(model: PreTrainedModel) -> int:
    """Bytes that a forward pass of a packed row keeps for the backward pass, without weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        found.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    ids = torch.arange(sum(LENGTHS))[None] % 50
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        states = last_hidden_states(model, ids, pack(LENGTHS, ids.device))
    total = sum(tensor.untyped_storage().nbytes() for place, tensor in found.items() if place not in weights)
    assert states.requires_grad
    return total


@pytest.mark.parametrize("heads", [8, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 64])
def test_forward_keeps_estimated_bytes(
    heads: int, dtype: torch.dtype, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "has_bf16_instructions", lambda: True)  # otherwise attention is in float32
    if window is None:
        model: PreTrainedModel = LlamaModel(LlamaConfig(**COMMON, num_key_value_heads=heads))
    else:
        model = MistralModel(MistralConfig(**COMMON, num_key_value_heads=heads, sliding_window=window))
    model = model.to(dtype)
    assert enable_packing(model)
    shape = model_shape(model)
    assert shape.window == window
    reckoned = activation_bytes(shape, dtype.itemsize, checkpointed=False, in_fp32=False, longest=LENGTHS[0])
    assert kept(model) == pytest.approx(reckoned * sum(LENGTHS), rel=0.05)
