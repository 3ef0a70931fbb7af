"""Packed rows: several sequences in one row without padding, each attending only to itself.

The model reads `[1, N]` with positions that restart for every sequence. A custom attention function, registered in the
library's attention interface, reads the whole row by one kernel where there is one (`varlen_attention`). Otherwise it
splits the row: sequences of similar length attend together, with padding only where it is cheap. It also applies
sliding windows.

Sequences with a shared prefix may have it in the row once: a suffix attends to its prefix and to itself.

With sequence parallelism the ranks of a group hold consecutive shares of one row, see `sequence_parallel`.
"""

from __future__ import annotations

import inspect
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ippo_cli.config.errors import PreflightError
from ippo_cli.engine import distributed
from ippo_cli.engine.number_formats import has_bf16_instructions
from ippo_cli.models.agreement import Readings, probe_ids, readings_match
from ippo_cli.models.attention_groups import Group, split_part
from ippo_cli.models.sequence_parallel import TokenShard, gather_tokens, local_shard, scatter_tokens
from ippo_cli.models.varlen_attention import DEVICES, attend_varlen
from ippo_cli.models.varlen_layout import RowPart, VarlenLayout, build_layout
from ippo_cli.types import move_carrier, move_tensor

_log = logging.getLogger(__name__)

Attention = Callable[..., tuple[Tensor, Tensor | None]]

VARLEN = "varlen"
"""The attention of a packed row by one kernel where that is possible, else as `sdpa`."""

PACKED = {"sdpa": "ippo_cli_packed", "eager": "ippo_cli_packed_eager", VARLEN: "ippo_cli_packed_varlen"}
"""Names of the custom attention functions, by the library's name that they use without a `packing`, or `VARLEN`."""

PROBE, PROBE_PREFIX = (24, 17, 9), 5
"""Lengths of the test sequences, and of the shared prefix of the last two."""

FP32_WIDTH = 256
"""Up to this width bf16 sequences attend in float32 on a CPU, where torch's backward pass takes half the time in it.
Without bf16 instructions sequences of every width do, which takes a sixth of the time."""


@dataclass(frozen=True)
class Packing:
    """The sequences of a row of `N` tokens. What attention needs is built at its first use."""

    positions: Tensor  # [1, N]
    parts: tuple[RowPart, ...]
    shard: TokenShard | None = None  # this rank's share of the row; None where the rank holds all of it

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The split of the row into sequences that attend together."""
        device = self.positions.device
        return tuple(move_carrier(group, device) for part in self.parts for group in split_part(part, device.type))

    @cached_property
    def layout(self) -> VarlenLayout:
        """The row as one kernel reads it."""
        return move_carrier(build_layout(self.parts), self.positions.device)

    def split_over_group(self) -> Packing:
        """The packing with the row split over the ranks of the model-parallel group."""
        return replace(self, shard=local_shard(self.positions.shape[1]))


@dataclass(frozen=True, slots=True)
class Suffixes:
    """Sequences that share one prefix, itself a sequence of the row."""

    prefix_index: int  # index of the prefix sequence
    lengths: Sequence[int]  # longest first


def pack(lengths: Sequence[int], device: torch.device, suffixes: Sequence[Suffixes] = ()) -> Packing:
    """The packing of sequences of these lengths, longest first, followed by the suffixes of some of them."""
    parts = [RowPart(0, tuple(lengths), slice(0, 0))]
    first = sum(lengths)
    for each in suffixes:
        start = sum(lengths[: each.prefix_index])
        parts.append(RowPart(first, tuple(each.lengths), slice(start, start + lengths[each.prefix_index])))
        first += sum(each.lengths)
    positions = [part.num_prefix_tokens + np.arange(length) for part in parts for length in part.lengths]
    return Packing(move_tensor(torch.from_numpy(np.concatenate(positions)), device)[None], tuple(parts))


@dataclass(slots=True)
class Trace:
    """Inputs, outputs and window of every layer's attention."""

    states: list[Tensor] = field(default_factory=list)  # queries, keys, values, output, layer by layer
    windows: list[int | None] = field(default_factory=list)


def attend(
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packing: Packing | None = None,
    trace: Trace | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The library's attention of that name, applied to every group separately if the model reads a packed row."""
    if trace is not None:
        output, weights = attend(name, module, query, key, value, attention_mask, packing, **options)
        trace.states += [part.transpose(1, 2).flatten(2)[0] for part in (query, key, value)] + [output.flatten(2)[0]]
        trace.windows.append(options.get("sliding_window"))
        return output, weights
    if packing is None:
        return library_attention(name, module)(module, query, key, value, attention_mask, **options)
    states = (query, key, value)
    if packing.shard is None:
        return _attend_row(name, module, states, packing, options), None
    states = tuple(gather_tokens(each, packing.shard) for each in states)
    return scatter_tokens(_attend_row(name, module, states, packing, options), packing.shard), None


def _attend_row(
    name: str, module: nn.Module, states: Sequence[Tensor], packing: Packing, options: Mapping[str, Any]
) -> Tensor:
    """Attention `[1, N, heads, size]` of a row's queries, keys and values `[1, heads, N, size]`."""
    if name == VARLEN and (output := attend_varlen(states, lambda: packing.layout, options)) is not None:
        return output
    plain = library_attention(name, module)
    query, key, value = states
    # Split at once: the gradient of each separate slice would have the size of the row.
    sizes = [group.tokens.stop - group.tokens.start for group in packing.groups]
    split = [each.split(sizes, dim=2) for each in states]
    parts = []
    for group, *own in zip(packing.groups, *split, strict=True):
        unpacked = [group.unpack(own[0]), group.prepend_prefix(own[1], key), group.prepend_prefix(own[2], value)]
        width = unpacked[1].shape[2]
        mask = _causal_mask(group.width, width, options.get("sliding_window"), query.device)
        if name == "eager":
            mask = _additive_mask(mask, group.width, query)
        elif uses_fp32_attention(query.device.type, query.dtype == torch.bfloat16, width):
            unpacked = [each.float() for each in unpacked]
        output = plain(module, *unpacked, mask, **options)[0]
        parts.append(group.join(output.to(query.dtype)))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def library_attention(name: str, module: nn.Module) -> Attention:
    """The library's attention function of a name, or of `VARLEN`; `eager` is defined in each model's module."""
    if name == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward
    return ALL_ATTENTION_FUNCTIONS["sdpa" if name == VARLEN else name]


def _causal_mask(own: int, width: int, window: int | None, device: torch.device) -> Tensor | None:
    """Causal mask of the last `own` of `width` tokens, `[1, 1, own, width]`, with an optional window. None where the
    library needs no mask.
    """
    if own == width and (window is None or width <= window):
        return None
    mask, before = torch.ones(own, width, dtype=torch.bool, device=device), width - own
    mask = mask.tril(before)
    return (mask if window is None else mask.triu(before + 1 - window))[None, None]


def _additive_mask(mask: Tensor | None, width: int, query: Tensor) -> Tensor:
    """The additive mask for library functions that apply no mask themselves; causal if none is given."""
    if mask is None:
        mask = torch.ones(width, width, dtype=torch.bool, device=query.device).tril()[None, None]
    return torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill_(~mask, -math.inf)


def uses_fp32_attention(device: str, bf16: bool, width: int) -> bool:
    """Whether sequences of this width in a packed row attend in float32 in a bf16 model."""
    return bf16 and device == "cpu" and (width <= FP32_WIDTH or not has_bf16_instructions())


for _name, _packed in PACKED.items():
    AttentionInterface.register(_packed, partial(attend, _name))
    AttentionMaskInterface.register(_packed, eager_mask if _name == "eager" else sdpa_mask)


def last_hidden_states(backbone: PreTrainedModel, input_ids: Tensor, packing: Packing | None, **options: Any) -> Tensor:
    """Last hidden states of all tokens, `[b * L, H]`, of padded rows `[b, L]` or of one packed row `[1, N]`.

    If the row is split over ranks, those of this rank's share, `[n, H]`.
    """
    return run_backbone(backbone, input_ids, packing, **options).last_hidden_state.flatten(0, 1)


def run_backbone(backbone: PreTrainedModel, input_ids: Tensor, packing: Packing | None, **options: Any) -> Any:
    """The library's output for padded rows `[b, L]`, or for one packed row `[1, N]` or this rank's share of it."""
    if packing is None:
        return backbone(input_ids=input_ids, use_cache=False, **options)
    if backbone.config._attn_implementation not in PACKED.values():
        raise RuntimeError(f"{type(backbone).__name__} received a packed row, but does not support packed rows")
    positions = packing.positions
    if packing.shard is not None:
        input_ids, positions = packing.shard.cut(input_ids), packing.shard.cut(positions)
    # The library passes a 4D mask through unchanged; the packing has the actual masks.
    mask = torch.zeros(1, 1, 1, 1, device=input_ids.device)
    return backbone(
        input_ids=input_ids,
        position_ids=positions,
        attention_mask=mask,
        use_cache=False,
        packing=packing,
        **options,
    )


def enable_packing(backbone: PreTrainedModel, *, split: bool = False) -> bool:
    """Enable packed rows for a model that supports them, and return whether it does; tested once on a few tokens.

    `split`: whether ranks of a group share the rows, which is tested as well, together with the other ranks. Raises
    `PreflightError` if the model does not support that. Otherwise logs a warning if packed rows are unsupported, since
    training is then slower.
    """
    if supports_attention_interface(backbone):
        name = str(backbone.config._attn_implementation)
        choices = _attention_choices(name, backbone.device)
        for used in choices:
            backbone.config._attn_implementation_internal = PACKED[used]  # the public setter would change other configs
            if all(_packed_rows_match(backbone, split=splits) for splits in (False, *([True] * split))):
                if used != choices[0]:
                    _warn_once(
                        f"{type(backbone).__name__} has other outputs if one kernel attends to a packed row; "
                        "sequences attend in groups, which takes longer"
                    )
                return True
        backbone.config._attn_implementation_internal = name
    if split:
        raise PreflightError(
            f"deepspeed.sequence_parallel={distributed.group_size()}: {type(backbone).__name__} computes other outputs "
            "if its rows are packed and split over ranks; set deepspeed.sequence_parallel=1"
        )
    _warn_once(
        f"{type(backbone).__name__} does not support packed rows; training and scoring use "
        "padded rows, which takes longer the more their lengths differ"
    )
    return False


def _warn_once(message: str) -> None:
    """Log a warning on one of the ranks."""
    if distributed.claim_log_once(message):
        _log.warning(message)


def _attention_choices(name: str, device: torch.device) -> Sequence[str]:
    """The attention functions to test, by preference: where `VARLEN` is `sdpa`, a second test would be the same."""
    if name != "sdpa":
        return (name,)
    return (VARLEN, "sdpa") if device.type in DEVICES else (VARLEN,)


def supports_attention_interface(backbone: PreTrainedModel) -> bool:
    """Whether a model calls attention through the library's interface, with full or sliding-window causal attention."""
    return (
        backbone.config._attn_implementation in PACKED
        and backbone._supports_attention_backend
        and {"position_ids", "kwargs"} <= inspect.signature(backbone.forward).parameters.keys()
        and {type(layer) for layer in _cache_layers(backbone)} <= {DynamicLayer, DynamicSlidingWindowLayer}
    )


def _cache_layers(backbone: PreTrainedModel) -> Sequence[Any]:
    """The cache type of each layer."""
    return DynamicCache(config=backbone.config.get_text_config(decoder=True)).layers


@torch.no_grad()
def _packed_rows_match(backbone: PreTrainedModel, *, split: bool) -> bool:
    """Whether a few packed sequences, two with a shared prefix, give the same outputs as separate sequences, compared
    with the effect of positions that are off by one. `split`: whether ranks of a group share the row; collective.
    """
    config = backbone.config.get_text_config(decoder=True)
    room = (getattr(config, "max_position_embeddings", None) or 1 << 30) - 1
    lengths = [max(min(length, room), 2) for length in PROBE]
    prefix = min(PROBE_PREFIX, lengths[-1] - 1)
    first, *others = probe_ids(sum(lengths), config.vocab_size, backbone.device).split(lengths, dim=1)
    begin = others[0][:, :prefix]
    rests = [part[:, prefix:] for part in others]
    parts = [first, *(torch.cat([begin, rest], dim=1) for rest in rests)]
    ids = torch.cat([first, begin, *rests], dim=1)
    packed = partial(pack, [lengths[0], prefix], ids.device, [Suffixes(1, [rest.shape[1] for rest in rests])])
    places = torch.arange(ids.shape[1], device=ids.device).split(
        [lengths[0], prefix, *(rest.shape[1] for rest in rests)]
    )
    whole = torch.cat([places[0], *(part for rest in places[2:] for part in (places[1], rest))])

    def readings() -> Readings:
        expected = _concatenate_traces([_trace_forward(backbone, part) for part in parts])
        wrong = _concatenate_traces([_trace_forward(backbone, part, shift=1) for part in parts])
        row = packed().split_over_group() if split else packed()
        actual = _trace_forward(backbone, ids, packing=row)
        if row.shard is not None:
            actual = [row.shard.gather_row(entry) for entry in actual]
        return [entry[whole] for entry in actual], expected, wrong

    return readings_match(backbone, readings, "packed rows split over ranks" if split else "packed rows")


def _trace_forward(
    backbone: PreTrainedModel, ids: Tensor, *, shift: int = 0, packing: Packing | None = None
) -> list[Tensor]:
    """Inputs and outputs of every layer's attention, and the last hidden states, each `[N, D]`.

    Raises ValueError if a layer's attention does not receive its sliding window, which a few tokens would not show.
    """
    trace = Trace()
    positions = torch.arange(shift, shift + ids.shape[1], device=ids.device)[None]
    options = {"position_ids": positions} if shift else {}
    states = last_hidden_states(backbone, ids, packing, trace=trace, **options)
    windows = [getattr(layer, "sliding_window", None) for layer in _cache_layers(backbone)]
    if trace.windows != windows:
        raise ValueError(f"sliding windows of {windows}, but attention receives {trace.windows}")
    return [*trace.states, states]


def _concatenate_traces(parts: Sequence[list[Tensor]]) -> list[Tensor]:
    return [torch.cat(entries) for entries in zip(*parts, strict=True)]
