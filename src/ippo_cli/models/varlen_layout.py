"""A packed row as a kernel for sequences of different lengths reads it: bounds, and copies of shared prefixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, slots=True)
class RowPart:
    """Adjacent sequences of a row with the same prefix, or without one."""

    first: int  # index of their first token
    lengths: tuple[int, ...]
    prefix: slice  # its tokens in the row; empty without one

    @property
    def num_prefix_tokens(self) -> int:
        return self.prefix.stop - self.prefix.start

    def slices(self) -> Iterator[slice]:
        """The tokens of each sequence, without the prefix."""
        first = self.first
        for length in self.lengths:
            yield slice(first, first + length)
            first += length


@dataclass(frozen=True, slots=True)
class RepeatedTokens:
    """Tokens of the row that are keys of the same number of sequences."""

    tokens: Tensor  # [n] index in the row
    copies: Tensor  # [c * n] index of each of their c copies among the keys


@dataclass(frozen=True, slots=True)
class KeyCopies:
    """The keys of all sequences, each with its shared prefix, as copies of a row's N tokens."""

    index: Tensor  # [K] the token of each key
    own: Tensor  # [N] the key of each token in its own sequence
    repeated: tuple[RepeatedTokens, ...]

    def gather(self, states: Tensor) -> Tensor:
        """`[N, heads, size] -> [K, heads, size]`."""
        return _GatherKeys.apply(states, self)


class _GatherKeys(torch.autograd.Function):
    """Copy tokens to keys; a token's gradient is the sum over its copies, in one order, without atomic additions."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, keys: KeyCopies) -> Tensor:
        ctx.keys = keys
        return states.index_select(0, keys.index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        total = grad.index_select(0, ctx.keys.own)
        for each in ctx.keys.repeated:
            copies = grad.index_select(0, each.copies).unflatten(0, (-1, len(each.tokens)))
            total.index_copy_(0, each.tokens, copies.sum(dim=0))
        return total, None


@dataclass(frozen=True, slots=True)
class VarlenLayout:
    """Bounds of the sequences of a row among its queries and its keys."""

    query_bounds: Tensor  # [sequences + 1] int32
    key_bounds: Tensor  # [sequences + 1] int32
    max_queries: int
    max_keys: int
    key_copies: KeyCopies | None  # None where keys are the row


def build_layout(parts: Sequence[RowPart]) -> VarlenLayout:
    """The layout of a row, on the host."""
    queries = [length for part in parts for length in part.lengths]
    keys = [part.num_prefix_tokens + length for part in parts for length in part.lengths]
    query_bounds, key_bounds = (np.cumsum([0, *lengths]) for lengths in (queries, keys))
    return VarlenLayout(
        query_bounds=torch.from_numpy(query_bounds).int(),
        key_bounds=torch.from_numpy(key_bounds).int(),
        max_queries=max(queries),
        max_keys=max(keys),
        key_copies=_copy_prefixes(parts, key_bounds) if sum(keys) > sum(queries) else None,
    )


def _copy_prefixes(parts: Sequence[RowPart], bounds: np.ndarray) -> KeyCopies:
    """The keys of a row with shared prefixes, by the `bounds` of each sequence's keys."""
    index, own = [], []
    copies: dict[tuple[int, int], list[np.ndarray]] = {}  # the keys of a prefix in each sequence that shares it
    first_keys = iter(bounds[:-1])
    for part in parts:
        prefix = np.arange(part.prefix.start, part.prefix.stop)
        for tokens, key in zip(part.slices(), first_keys, strict=False):
            index += [prefix, np.arange(tokens.start, tokens.stop)]
            own.append(key + len(prefix) + np.arange(tokens.stop - tokens.start))
            if len(prefix):
                copies.setdefault((part.prefix.start, part.prefix.stop), []).append(key + np.arange(len(prefix)))
    key_of = np.concatenate(own)
    by_count: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for (start, stop), keys in copies.items():
        by_count.setdefault(len(keys), []).append((np.arange(start, stop), np.stack([key_of[start:stop], *keys])))
    repeated = []
    for group in by_count.values():
        tokens, keys = np.concatenate([one for one, _ in group]), np.concatenate([one for _, one in group], axis=1)
        repeated.append(RepeatedTokens(torch.from_numpy(tokens), torch.from_numpy(keys).flatten()))
    return KeyCopies(torch.from_numpy(np.concatenate(index)), torch.from_numpy(key_of), tuple(repeated))
