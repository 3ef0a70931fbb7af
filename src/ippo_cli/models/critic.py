"""The value function: a zero-initialised head, alone or on a backbone without a language-model head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ippo_cli.models.layout import Sequences
from ippo_cli.models.load import save_model
from ippo_cli.models.packing import last_hidden_states


class ValueHeadConfig(PreTrainedConfig):
    """Configuration of `ValueHead`: input width, and width of its hidden layer (None: one linear map)."""

    model_type = "ippo_value_head"

    def __init__(self, hidden_size: int = 0, value_head_hidden_dim: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.value_head_hidden_dim = value_head_hidden_dim


class ValueModelConfig(PreTrainedConfig):
    """Configuration of `ValueModel`: the backbone's configuration as a dict, and the head's hidden width."""

    model_type = "ippo_value_model"

    def __init__(
        self, backbone: dict[str, Any] | None = None, value_head_hidden_dim: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.backbone = backbone or {}
        self.value_head_hidden_dim = value_head_hidden_dim


class Float32Linear(nn.Linear):
    """A linear map computed in float32, for any dtype of input and weights."""

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return F.linear(input.float(), self.weight.float(), bias)


class ValueHead(PreTrainedModel):
    """Maps hidden states `[..., H]` to values `[...]` in float32. The last layer is zero-initialised.

    Weights have the model's dtype and the computation is in float32: bfloat16 has 8 bits, so values around 5 would be
    multiples of 1/32, and this rounding would enter advantages as noise.
    """

    config_class = ValueHeadConfig
    base_model_prefix = "value_head"

    def __init__(self, config: ValueHeadConfig) -> None:
        super().__init__(config)
        inner = config.value_head_hidden_dim
        self.hidden = Float32Linear(config.hidden_size, inner) if inner else None
        self.out = Float32Linear(inner or config.hidden_size, 1)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if module is self.out:  # a random head would start with large errors, with large gradients for the backbone
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.hidden is not None:
            hidden = torch.tanh(self.hidden(hidden))
        return self.out(hidden).squeeze(-1)


class ValueModel(PreTrainedModel):
    """A backbone and a value head. `forward` returns the values `[b, R + 1]` of every state, see `Sequences.state`."""

    config_class = ValueModelConfig
    base_model_prefix = "backbone"
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def __init__(self, config: ValueModelConfig, backbone: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        if backbone is None:
            settings = dict(config.backbone)
            backbone = AutoModel.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
        assert backbone is not None
        self.backbone: PreTrainedModel = backbone
        self.packs = False  # whether it receives packed rows, see `enable_packing`
        width = hidden_width(backbone.config)
        self.value_head = ValueHead(ValueHeadConfig(width, config.value_head_hidden_dim))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        self.value_head._init_weights(module)

    def save(
        self, folder: Path, weights: dict[str, Tensor], tokenizer: PreTrainedTokenizerBase, *, merged: bool
    ) -> list[Path]:
        """Write `critic/` in Hugging Face format; return the folders. `merged` has no effect without an adapter."""
        save_model(self, folder / "critic", weights)
        tokenizer.save_pretrained(folder / "critic")
        return [folder / "critic"]

    def forward(self, sequences: Sequences) -> Tensor:
        hidden = last_hidden_states(self.backbone, sequences.input_ids, sequences.packing)
        return gather_states(self.value_head(hidden), sequences)


def make_value_model(backbone: PreTrainedModel, value_head_hidden_dim: int | None) -> ValueModel:
    """A critic on a loaded backbone, with a zero head."""
    settings = backbone.config.to_diff_dict() | {"model_type": backbone.config.model_type}
    config = ValueModelConfig(settings, value_head_hidden_dim, dtype=backbone.config.dtype)
    model = ValueModel(config, backbone)
    announced = backbone.config.dtype  # the dtype of the backbone's weights, if its configuration gives it
    dtype = announced if isinstance(announced, torch.dtype) else backbone.dtype
    nn.Module.to(model.value_head, dtype=dtype)  # not of the backbone: its buffers remain float32
    return model


def load_value_head(folder: Path) -> ValueHead:
    """Load a value head that was saved separately."""
    return ValueHead.from_pretrained(folder, use_safetensors=True)


def gather_states(values: Tensor, sequences: Sequences) -> Tensor:
    """Gather values of all tokens read by this rank, `[n]`, at the states `[b, R + 1]` of the sequences."""
    state, shard = sequences.state, sequences.shard
    if shard is None:
        return values.index_select(0, state.flatten()).view(state.shape)
    places = (state - shard.start).clamp(0, shard.size - 1)
    local = values.index_select(0, places.flatten()).view(state.shape)
    return sequences.join_shards(local.masked_fill(~shard.holds(state), 0.0))


def hidden_width(config: PreTrainedConfig) -> int:
    """Width of a backbone's last hidden state."""
    text = config.get_text_config()
    return int(text.word_embed_proj_dim if hasattr(text, "word_embed_proj_dim") else text.hidden_size)


def split_values(values: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """Split values of all states `[b, R + 1]`: before action tokens `[b, R]` (0 elsewhere), after all `[b]`."""
    before = values[:, :-1].masked_fill(~sequences.response_mask, 0.0)
    return before, values.gather(1, sequences.lengths[:, None]).squeeze(1)
