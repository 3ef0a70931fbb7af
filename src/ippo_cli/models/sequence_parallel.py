"""Sequence parallelism: the ranks of a group hold consecutive shares of the tokens of one packed row.

As in DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv 2309.14509): all layers process a rank's own tokens, except that
attention exchanges them for all tokens of a part of the heads, and back. Every rank then has a part of each gradient,
from its own tokens; their sum over the ranks is the gradient of the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from ippo_cli.engine import distributed


@dataclass(frozen=True, slots=True)
class TokenShard:
    """One rank's share of a row of `total` tokens, `start` to `start + size`; shares are equal, so the last ones may
    exceed the row and are padded.
    """

    start: int
    size: int
    total: int
    ranks: int

    @property
    def padding(self) -> int:
        """Tokens by which the shares of all ranks exceed the row."""
        return self.ranks * self.size - self.total

    def cut(self, row: Tensor) -> Tensor:
        """This rank's tokens of a row: `[1, N] -> [1, size]`."""
        return pad(row, (0, self.padding))[:, self.start : self.start + self.size]

    def gather_row(self, states: Tensor) -> Tensor:
        """The states of all tokens from those of this share, `[size, d] -> [N, d]`. Collective over the group."""
        row = states.new_zeros(self.ranks * self.size, states.shape[1])
        row[self.start : self.start + self.size] = states
        return distributed.sum_over_group(row)[: self.total]

    def holds(self, index: Tensor) -> Tensor:
        """Whether each index into the row is in this share."""
        return (index >= self.start) & (index < self.start + self.size)


def local_shard(total: int) -> TokenShard:
    """This rank's share of a row of `total` tokens that its model-parallel group reads together."""
    ranks = distributed.group_size()
    size = -(-total // ranks)
    return TokenShard(start=distributed.group_rank() * size, size=size, total=total, ranks=ranks)


def gather_tokens(states: Tensor, shard: TokenShard) -> Tensor:
    """All tokens of this rank's heads from own tokens of all heads: `[1, heads, size, d] -> [1, heads / ranks, N, d]`.

    Collective over the group, and again in the backward pass.
    """
    by_rank = states[0].unflatten(0, (shard.ranks, -1))
    received: Tensor = _Exchange.apply(by_rank)  # by rank of origin, which is the order of the tokens
    return received.transpose(0, 1).flatten(1, 2)[None, :, : shard.total]


def scatter_tokens(output: Tensor, shard: TokenShard) -> Tensor:
    """Own tokens of all heads from all tokens of this rank's heads: `[1, N, heads / ranks, d] -> [1, size, heads, d]`.

    Collective over the group, and again in the backward pass.
    """
    by_rank = pad(output[0], (0, 0, 0, 0, 0, shard.padding)).unflatten(0, (shard.ranks, shard.size))
    received: Tensor = _Exchange.apply(by_rank)  # by rank of origin, which is the order of the heads
    return received.transpose(0, 1).flatten(1, 2)[None]


def sum_shards(values: Tensor) -> Tensor:
    """The sum over the group of values that are 0 on all ranks but one; a rank's gradient is that of its own values.

    For a loss that is equal on every rank of the group. Collective over the group.
    """
    result: Tensor = _SumShards.apply(values)
    return result


class _Exchange(torch.autograd.Function):
    """An all-to-all over the group along the first axis; the transpose of an all-to-all is an all-to-all."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor) -> Tensor:
        return distributed.exchange_over_group(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return distributed.exchange_over_group(grad)


class _SumShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return distributed.sum_over_group(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad
