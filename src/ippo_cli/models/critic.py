"""The value function: a zero-initialised head, alone or on a backbone without a language-model head."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ippo_cli.config.schema import TrainedCriticConfig
from ippo_cli.formulas import ValueBins, expected_values, rescale_output
from ippo_cli.models.layout import Sequences
from ippo_cli.models.load import UnusableModel, save_model
from ippo_cli.models.packing import last_hidden_states


class HeadConfig(PreTrainedConfig):
    """The keys of a value head.

    `value_head_hidden_dim`: width of its hidden layer (None: one linear map). `value_mean`, `value_std`: by which its
    values are normalised. `value_bins`: number of bins, from `value_min` to `value_max` (None: one number);
    `bin_sigma`: standard deviation of their targets, in bin widths.
    """

    def __init__(
        self,
        value_head_hidden_dim: int | None = None,
        value_mean: float = 0.0,
        value_std: float = 1.0,
        value_bins: int | None = None,
        value_min: float | None = None,
        value_max: float | None = None,
        bin_sigma: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.value_head_hidden_dim = value_head_hidden_dim
        self.value_mean = value_mean
        self.value_std = value_std
        self.value_bins = value_bins
        self.value_min = value_min
        self.value_max = value_max
        self.bin_sigma = bin_sigma


class ValueHeadConfig(HeadConfig):
    """Configuration of `ValueHead`: the width of its input, and the keys of a head."""

    model_type = "ippo_value_head"

    def __init__(self, hidden_size: int = 0, value_head_hidden_dim: int | None = None, **kwargs: Any) -> None:
        super().__init__(value_head_hidden_dim, **kwargs)
        self.hidden_size = hidden_size


class ValueModelConfig(HeadConfig):
    """Configuration of `ValueModel`: the backbone's configuration as a dict, and the keys of its head."""

    model_type = "ippo_value_model"

    def __init__(
        self, backbone: dict[str, Any] | None = None, value_head_hidden_dim: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(value_head_hidden_dim, **kwargs)
        self.backbone = backbone or {}


SHAPE_KEYS = ("value_head_hidden_dim", "value_bins", "value_min", "value_max")
"""Keys of a head that its weights depend on."""

NORMALIZED_RANGE = (-5.0, 5.0)  # of bins of normalised values, where the configuration has none
BIN_SIGMA = 0.75  # Farebrother et al. 2024, section 4.3


def head_keys(config: PreTrainedConfig) -> dict[str, Any]:
    """The keys of a head in the configuration of a `ValueHead` or `ValueModel`."""
    return {key: getattr(config, key) for key in (*SHAPE_KEYS, "bin_sigma", "value_mean", "value_std")}


def configured_head_keys(critic: TrainedCriticConfig) -> dict[str, Any]:
    """The keys of a new head of this critic, as in `ValueHeadConfig`."""
    keys: dict[str, Any] = {"value_head_hidden_dim": critic.value_head_hidden_dim, "value_bins": critic.value_bins}
    if critic.value_bins is None:
        return keys
    low, high = NORMALIZED_RANGE
    return keys | {
        "value_min": low if critic.value_min is None else critic.value_min,
        "value_max": high if critic.value_max is None else critic.value_max,
        "bin_sigma": critic.bin_sigma or BIN_SIGMA,
    }


def check_head_shape(stored: Mapping[str, Any], critic: TrainedCriticConfig) -> None:
    """Raise `UnusableModel` if a saved head, with these settings, has another shape than this critic's."""
    wanted = configured_head_keys(critic)
    for key in SHAPE_KEYS:
        if stored.get(key) != wanted.get(key):
            raise UnusableModel(f"its {key} is {stored.get(key)}, and that of this run is {wanted.get(key)}")
    moments = stored.get("value_mean", 0.0), stored.get("value_std", 1.0)
    if critic.value_bins is not None and critic.popart_beta is None and moments != (0.0, 1.0):
        raise UnusableModel("its bins are of returns normalised by critic.popart_beta, and this run has none")


class Float32Linear(nn.Linear):
    """A linear map computed in float32, for any dtype of input and weights."""

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return F.linear(input.float(), self.weight.float(), bias)


class ValueHead(PreTrainedModel):
    """Maps hidden states `[..., H]` to values `[...]` in float32. The last layer is zero-initialised.

    The last layer gives a normalised value (`critic.popart_beta`), or the logits of bins of it (`critic.value_bins`). A
    value is the normalised one times `value_std`, plus `value_mean`.

    Weights have the model's dtype and the computation is in float32: bfloat16 has 8 bits, so values around 5 would be
    multiples of 1/32, and this rounding would enter advantages as noise.
    """

    config_class = ValueHeadConfig
    base_model_prefix = "value_head"

    def __init__(self, config: ValueHeadConfig) -> None:
        super().__init__(config)
        inner = config.value_head_hidden_dim
        self.hidden = Float32Linear(config.hidden_size, inner) if inner else None
        self.out = Float32Linear(inner or config.hidden_size, config.value_bins or 1)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if module is self.out:  # a random head would start with large errors, with large gradients for the backbone
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.to_values(self.outputs(hidden))

    def outputs(self, hidden: Tensor) -> Tensor:
        """Outputs of the last layer: normalised values `[...]`, or logits `[..., K]` of K bins."""
        if self.hidden is not None:
            hidden = torch.tanh(self.hidden(hidden))
        outputs = self.out(hidden)
        return outputs.squeeze(-1) if self.bins is None else outputs

    def to_values(self, outputs: Tensor) -> Tensor:
        """Values in units of the reward, `[...]`, from `outputs`."""
        values = outputs if self.bins is None else expected_values(outputs, self.bins)
        return values * self.config.value_std + self.config.value_mean if self.is_normalized else values

    @property
    def bins(self) -> ValueBins | None:
        """The bins of its values; None where it gives one number."""
        if self.config.value_bins is None:
            return None
        return ValueBins(
            self.config.value_bins, self.config.value_min, self.config.value_max, self.config.bin_sigma or BIN_SIGMA
        )

    def normalize(self, values: Tensor) -> Tensor:
        """Normalised values, from values in units of the reward."""
        return (values - self.config.value_mean) / self.config.value_std if self.is_normalized else values

    @property
    def is_normalized(self) -> bool:
        """Whether normalised values differ from values."""
        return (self.config.value_mean, self.config.value_std) != (0.0, 1.0)

    def set_moments(self, mean: float, std: float) -> None:
        """Set the mean and standard deviation of normalisation. The weights remain, so that values change."""
        self.config.value_mean, self.config.value_std = mean, std

    @torch.no_grad()
    def copy_from(self, other: ValueHead) -> None:
        """Copy the weights and moments of a head of the same shape."""
        self.load_state_dict(other.state_dict())
        self.set_moments(other.config.value_mean, other.config.value_std)

    @torch.no_grad()
    def remove_normalization(self) -> None:
        """Fold the moments into the weights; values remain. For a head without bins (`check_head_shape` refuses them:
        logits cannot be rescaled), outside of an engine.
        """
        assert self.bins is None
        old = self.config.value_mean, self.config.value_std
        weight, bias = rescale_output(self.out.weight, self.out.bias, old, (0.0, 1.0))
        self.out.weight.copy_(weight)
        self.out.bias.copy_(bias)
        self.set_moments(0.0, 1.0)


class ValueModel(PreTrainedModel):
    """A backbone and a value head.

    `forward` returns the head's outputs in every state, `[b, R + 1]` or `[b, R + 1, K]`: see `Sequences.state` and
    `ValueHead.outputs`.
    """

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
        self.value_head = ValueHead(ValueHeadConfig(width, **head_keys(config)))
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

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As in transformers; the configuration has the head's current moments."""
        for key, value in head_keys(self.value_head.config).items():
            setattr(self.config, key, value)
        super().save_pretrained(*args, **kwargs)

    def forward(self, sequences: Sequences) -> Tensor:
        hidden = last_hidden_states(self.backbone, sequences.input_ids, sequences.packing)
        return gather_states(self.value_head.outputs(hidden), sequences)


def make_value_model(
    backbone: PreTrainedModel, value_head_hidden_dim: int | None = None, **head_keys: Any
) -> ValueModel:
    """A critic on a loaded backbone, with a zero head; `head_keys`: others of `ValueHeadConfig`."""
    settings = backbone.config.to_diff_dict() | {"model_type": backbone.config.model_type}
    config = ValueModelConfig(settings, value_head_hidden_dim, dtype=backbone.config.dtype, **head_keys)
    model = ValueModel(config, backbone)
    announced = backbone.config.dtype  # the dtype of the backbone's weights, if its configuration gives it
    dtype = announced if isinstance(announced, torch.dtype) else backbone.dtype
    nn.Module.to(model.value_head, dtype=dtype)  # not of the backbone: its buffers remain float32
    return model


def attach_value_head(backbone: PreTrainedModel, head: ValueHead) -> ValueModel:
    """A critic of a loaded backbone and a copy of a head."""
    model = make_value_model(backbone, **head_keys(head.config))
    model.value_head.copy_from(head)
    return model


def load_value_head(folder: Path) -> ValueHead:
    """Load a value head that was saved separately."""
    return ValueHead.from_pretrained(folder, use_safetensors=True)


def gather_states(outputs: Tensor, sequences: Sequences) -> Tensor:
    """Gather outputs of all tokens read by this rank, `[n, ...]`, at the states of the sequences, `[b, R + 1, ...]`."""
    state, shard = sequences.state, sequences.shard
    if shard is None:
        return outputs.index_select(0, state.flatten()).unflatten(0, state.shape)
    places = (state - shard.start).clamp(0, shard.size - 1)
    local = outputs.index_select(0, places.flatten()).unflatten(0, state.shape)
    return sequences.join_shards(local.masked_fill(~_expand(shard.holds(state), local), 0.0))


def hidden_width(config: PreTrainedConfig) -> int:
    """Width of a backbone's last hidden state."""
    text = config.get_text_config()
    return int(text.word_embed_proj_dim if hasattr(text, "word_embed_proj_dim") else text.hidden_size)


def split_values(outputs: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """Split outputs in all states, `[b, R + 1, ...]`: before action tokens `[b, R, ...]` (0 elsewhere), after all
    `[b, ...]`.
    """
    before = outputs[:, :-1].masked_fill(~_expand(sequences.response_mask, outputs), 0.0)
    return before, outputs[torch.arange(len(outputs), device=outputs.device), sequences.lengths]


def _expand(mask: Tensor, like: Tensor) -> Tensor:
    """A mask `[b, R]` with as many axes as `like`."""
    return mask.view(*mask.shape, *(1,) * (like.dim() - mask.dim()))
