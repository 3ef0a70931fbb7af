"""Groups of a packed row's sequences: those of similar length attend together, padded to the longest of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ippo_cli.models.varlen_layout import RowPart

PADDING_BUDGET = {"cpu": 128, "cuda": 8192}
"""Number of padded positions that cost as much as one more group. Measured on a CPU; estimated for a GPU: a group is
some twenty kernels of 5 microseconds in each layer, forward and backward, and a position moves 24 KB in a model of
width 900, 10 nanoseconds at 2.5 TB/s.
"""

DOUBLING_WIDTH = {"cpu": math.inf, "cuda": 1024}
"""Group width at which attention doubles the cost of a padded position. The CPU's bound was measured with it."""


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


def split_part(part: RowPart, device: str) -> Iterator[Group]:
    """The groups of the sequences of one part, for attention on a kind of device; their tensors are on the host."""
    counts, token = torch.tensor(part.lengths), part.first
    for rows in group_by_length(part.lengths, device if device in PADDING_BUDGET else "cuda"):
        group = _make_group(counts[rows], token, part.lengths[rows], part.prefix)
        token = group.tokens.stop
        yield group


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
