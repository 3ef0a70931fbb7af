"""Packed rows: several sequences in one row without padding, each attending only to itself.

The model reads `[1, N]` with positions that restart for every sequence. A custom attention function, registered in the
library's attention interface, splits the row: sequences of similar length attend together, with padding only where it
is cheap. It also applies sliding windows.

Sequences with a shared prefix may have it in the row once: a suffix attends to its prefix and to itself.

With sequence parallelism the ranks of a group hold consecutive shares of one row, see `sequence_parallel`.
"""

from __future__ import annotations

import inspect
import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ippo_cli.config.errors import PreflightError
from ippo_cli.engine import distributed
from ippo_cli.engine.number_formats import has_bf16_instructions
from ippo_cli.models.agreement import Readings, probe_ids, readings_match
from ippo_cli.models.sequence_parallel import TokenShard, gather_tokens, local_shard, scatter_tokens

_log = logging.getLogger(__name__)

Attention = Callable[..., tuple[Tensor, Tensor | None]]

PACKED = {"sdpa": "ippo_cli_packed", "eager": "ippo_cli_packed_eager"}
"""Names of the custom attention functions, by the library's name that they use without a `packing`."""

PROBE, PROBE_PREFIX = (24, 17, 9), 5
"""Lengths of the test sequences, and of the shared prefix of the last two."""

PADDING_BUDGET = {"cpu": 128, "cuda": 8192}
"""Number of padded positions that cost as much as one more group. Measured on a CPU; estimated for a GPU: a group is
some twenty kernels of 5 microseconds in each layer, forward and backward, and a position moves 24 KB in a model of
width 900, 10 nanoseconds at 2.5 TB/s.
"""

DOUBLING_WIDTH = {"cpu": math.inf, "cuda": 1024}
"""Group width at which attention doubles the cost of a padded position. The CPU's bound was measured with it."""

FP32_WIDTH = 256
"""Up to this width bf16 sequences attend in float32 on a CPU, where torch's backward pass takes half the time in it.
Without bf16 instructions sequences of every width do, which takes a sixth of the time."""


@dataclass(frozen=True, slots=True)
class Group:
    """Adjacent sequences of the row that attend together, `rows` times `width`."""

    tokens: slice  # its part of the row
    rows: int
    width: int
    index: Tensor | None  # [rows * width] index of the token at each position; None without padding
    inverse: Tensor  # [tokens] the position of each token
    mask: Tensor  # [rows * width] bool: False at padding, where an arbitrary token is copied
    prefix: slice  # the shared prefix in the row; empty without one

    def unpack(self, part: Tensor) -> Tensor:
        """Pad its part of the row, `[1, heads, tokens, size]`, to `[rows, heads, width, size]`."""
        if self.index is not None:
            part = _PermuteTokens.apply(part, self.index, self.inverse, None)
        _, heads, _, size = part.shape
        return part.reshape(heads, self.rows, self.width, size).transpose(0, 1)

    def prepend_prefix(self, part: Tensor, states: Tensor) -> Tensor:
        """Prepend the shared prefix from the row `[1, heads, N, size]` to each sequence of its part: `[rows, heads,
        prefix + width, size]`.
        """
        own = self.unpack(part)
        if self.prefix.start == self.prefix.stop:
            return own
        return torch.cat([states[:, :, self.prefix].expand(self.rows, -1, -1, -1), own], dim=2)

    def join(self, states: Tensor) -> Tensor:
        """Remove padding: `[rows, width, heads, size]` to `[1, tokens, heads, size]`."""
        flat = states.flatten(0, 1)[None]
        if self.index is None:
            return flat
        return _PermuteTokens.apply(flat.transpose(1, 2), self.inverse, self.index, self.mask).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class Packing:
    """The split of a row of `N` tokens into groups."""

    positions: Tensor  # [1, N]
    groups: tuple[Group, ...]
    shard: TokenShard | None = None  # this rank's share of the row; None where the rank holds all of it

    def split_over_group(self) -> Packing:
        """The packing with the row split over the ranks of the model-parallel group."""
        return replace(self, shard=local_shard(self.positions.shape[1]))


class _PermuteTokens(torch.autograd.Function):
    """Index the third axis by `index`; the backward pass uses `inverse`, with zero gradient where `mask` is False.

    The gradient of torch's own indexing is a slow accumulation by index; here each token has one position.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, index: Tensor, inverse: Tensor, mask: Tensor | None) -> Tensor:
        ctx.save_for_backward(inverse, *([] if mask is None else [mask]))
        return states.index_select(2, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        back, *real = ctx.saved_tensors
        moved = grad.index_select(2, back)
        return (moved * real[0][:, None] if real else moved), None, None, None


@dataclass(frozen=True, slots=True)
class Suffixes:
    """Sequences that share one prefix, itself a sequence of the row."""

    prefix_index: int  # index of the prefix sequence
    lengths: Sequence[int]  # longest first


def pack(
    lengths: Sequence[int],
    device: torch.device,
    suffixes: Sequence[Suffixes] = (),
    *,
    target: torch.device | None = None,
) -> Packing:
    """The packing of sequences of these lengths, longest first, followed by the suffixes of some of them.

    Its tensors are on the `device`, and moved to the `target`, which the groups suit.
    """
    kind = (target or device).type
    kind = kind if kind in PADDING_BUDGET else "cuda"
    parts = [(0, 0, lengths)]  # start of the prefix, its length, lengths of the sequences
    parts += [(sum(lengths[: each.prefix_index]), lengths[each.prefix_index], each.lengths) for each in suffixes]
    positions: list[Tensor] = []
    groups: list[Group] = []
    token = 0
    for start, before, own in parts:
        counts = torch.tensor(own, device=device)
        total = sum(own)
        # With a known output size the host does not wait for the device.
        begins = (counts.cumsum(0) - counts).repeat_interleave(counts, output_size=total)
        positions.append(before + torch.arange(total, device=device) - begins)
        for part in group_by_length(own, kind):
            prefix = slice(start, start + before)
            groups.append(_make_group(counts[part], token, own[part], prefix))
            token = groups[-1].tokens.stop
    return Packing(torch.cat(positions)[None], tuple(groups))


def group_by_length(lengths: Sequence[int], device: str) -> list[slice]:
    """Split lengths, longest first, into groups that attend together: a new group where padding would cost more."""
    groups, first = [], 0
    while first < len(lengths):
        width, padding, last = lengths[first], 0, first
        spare = PADDING_BUDGET[device] / (1 + width / DOUBLING_WIDTH[device])
        while last < len(lengths) and padding + width - lengths[last] <= spare:
            padding += width - lengths[last]
            last += 1
        groups.append(slice(first, last))
        first = last
    return groups


def _make_group(counts: Tensor, token: int, lengths: Sequence[int], prefix: slice) -> Group:
    rows, width, total = len(lengths), lengths[0], sum(lengths)
    padding = rows * width - total
    columns = torch.arange(width, device=counts.device)
    mask = (columns < counts[:, None]).flatten()
    starts = counts.cumsum(0) - counts
    index = (starts[:, None] + torch.minimum(columns, counts[:, None] - 1)).flatten()
    before = torch.arange(rows, device=counts.device) * width - starts  # padding before each row
    inverse = torch.arange(total, device=counts.device) + before.repeat_interleave(counts, output_size=total)
    return Group(slice(token, token + total), rows, width, index if padding else None, inverse, mask, prefix)


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
    plain = library_attention(name, module)
    if packing is None:
        return plain(module, query, key, value, attention_mask, **options)
    if packing.shard is not None:
        query, key, value = (gather_tokens(states, packing.shard) for states in (query, key, value))
        output, _ = attend(name, module, query, key, value, None, replace(packing, shard=None), **options)
        return scatter_tokens(output, packing.shard), None
    # Split at once: the gradient of each separate slice would have the size of the row.
    sizes = [group.tokens.stop - group.tokens.start for group in packing.groups]
    split = [states.split(sizes, dim=2) for states in (query, key, value)]
    parts = []
    for group, *own in zip(packing.groups, *split, strict=True):
        unpacked = [group.unpack(own[0]), group.prepend_prefix(own[1], key), group.prepend_prefix(own[2], value)]
        width = unpacked[1].shape[2]
        mask = _causal_mask(group.width, width, options.get("sliding_window"), query.device)
        if name == "eager":
            mask = _additive_mask(mask, group.width, query)
        elif uses_fp32_attention(query.device.type, query.dtype == torch.bfloat16, width):
            unpacked = [states.float() for states in unpacked]
        output = plain(module, *unpacked, mask, **options)[0]
        parts.append(group.join(output.to(query.dtype)))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1), None


def library_attention(name: str, module: nn.Module) -> Attention:
    """The library's attention function of a name; `eager` is defined in each model's module."""
    if name == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward
    return ALL_ATTENTION_FUNCTIONS[name]


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


for _name, _masks in (("sdpa", sdpa_mask), ("eager", eager_mask)):
    AttentionInterface.register(PACKED[_name], partial(attend, _name))
    AttentionMaskInterface.register(PACKED[_name], _masks)


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
        backbone.config._attn_implementation_internal = PACKED[name]  # the public setter would change other configs
        if _packed_rows_match(backbone, split=False) and not (split and not _packed_rows_match(backbone, split=True)):
            return True
        backbone.config._attn_implementation_internal = name
    if split:
        raise PreflightError(
            f"deepspeed.sequence_parallel={distributed.group_size()}: {type(backbone).__name__} computes other outputs "
            "if its rows are packed and split over ranks; set deepspeed.sequence_parallel=1"
        )
    message = (
        f"{type(backbone).__name__} does not support packed rows; training and scoring use "
        "padded rows, which takes longer the more their lengths differ"
    )
    if distributed.claim_log_once(message):
        _log.warning(message)
    return False


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
