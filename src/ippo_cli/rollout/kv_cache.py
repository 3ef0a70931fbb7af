"""Keys and values of rows that started together: preallocated, one write column for all, no copy per step."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

COLUMNS_AHEAD = 128
"""Columns reserved beyond those in use; reaching their end copies what is in use once."""


class KVCacheGroup:
    """The attention cache of rows whose columns are aligned at their newest token.

    A row's tokens stand in columns `[start, used)` of buffers `[rows, heads, columns, head size]`, one pair for each
    layer. All rows write the same column, so a step costs a slice, and no mask unless prompts differ in length.
    Finished rows are filled in by the last ones.
    """

    def __init__(self, starts: np.ndarray, used: int) -> None:
        self.starts = starts  # [rows] first column of each row
        self.used = used
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self._first = 0
        self._mask: Tensor | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def cells(self) -> int:
        """Row-columns in use: what moving this group costs."""
        return len(self) * (self.used - self._first)

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Keeps the prompt's keys and values of one layer."""
        self.keys[layer] = _roomy(keys, self.used + COLUMNS_AHEAD)
        self.values[layer] = _roomy(values, self.used + COLUMNS_AHEAD)

    def advance(self) -> None:
        """Makes room for one more column; `write` then fills it layer by layer."""
        some = next(iter(self.keys.values()))
        if self.used == some.shape[2]:
            self._move_left()
        self.used += 1

    def write(
        self, layer: int, keys: Tensor, values: Tensor, window: int | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Stores the newest column and returns what the rows attend to: keys, values, additive mask (or none)."""
        mine, yours, rows, end = self.keys[layer], self.values[layer], len(self), self.used
        mine[:rows, :, end - 1 : end] = keys
        yours[:rows, :, end - 1 : end] = values
        first = self._first if window is None else max(self._first, end - window)
        mask = None if self._mask is None else self._mask[..., first:end]
        return mine[:rows, :, first:end], yours[:rows, :, first:end], mask

    def settle(self) -> None:
        """Recomputes which columns are seen, after rows came or went: none before the oldest start, and a mask if
        starts differ."""
        self._first = int(self.starts.min())
        self._mask = None
        if (self.starts != self._first).any():
            some = next(iter(self.keys.values()))
            starts = torch.from_numpy(self.starts).to(some.device)
            hidden = torch.arange(some.shape[2], device=some.device) < starts[:, None]
            mask = torch.zeros(hidden.shape, dtype=some.dtype, device=some.device).masked_fill_(hidden, -math.inf)
            self._mask = mask[:, None, None]

    def keep(self, alive: np.ndarray) -> np.ndarray:
        """Drops the rows that are not alive; returns, for each row now, which row it was."""
        left = int(alive.sum())
        order = np.arange(left)
        holes, movers = np.flatnonzero(~alive[:left]), left + np.flatnonzero(alive[left:])
        order[holes] = movers
        if len(holes):
            to, source = torch.from_numpy(holes), torch.from_numpy(movers)
            for buffers in (self.keys, self.values):
                for buffer in buffers.values():
                    part = buffer[:, :, self._first : self.used]
                    part[to.to(buffer.device)] = part[source.to(buffer.device)]
        self.starts = self.starts[order]
        if left:
            self.settle()
        return order

    def _move_left(self) -> None:
        """Drops the columns that nobody sees any more and reserves new ones."""
        first, rows = self._first, len(self)
        width = self.used - first
        for buffers in (self.keys, self.values):
            for layer, buffer in buffers.items():
                buffers[layer] = _roomy(buffer[:rows, :, first : self.used], width + max(COLUMNS_AHEAD, width // 2))
        self.starts, self.used = self.starts - first, width
        self.settle()


def joined(older: KVCacheGroup, younger: KVCacheGroup) -> KVCacheGroup:
    """One group of both, newest columns aligned; empties the two."""
    parts = (older, younger)
    width = max(part.used - part._first for part in parts)
    shifts = [width - part.used for part in parts]
    both = KVCacheGroup(np.concatenate([part.starts + shift for part, shift in zip(parts, shifts, strict=True)]), width)
    for name in ("keys", "values"):
        for layer in list(getattr(older, name)):
            # One layer after another, so that old and new never stand in memory together.
            sources = [getattr(part, name).pop(layer) for part in parts]
            _, heads, _, size = sources[0].shape
            # Zeros, for what a mask hides is still multiplied by 0 and must be finite.
            buffer = sources[0].new_zeros(len(both), heads, width + COLUMNS_AHEAD, size)
            row = 0
            for part, source, shift in zip(parts, sources, shifts, strict=True):
                used = source[: len(part), :, part._first : part.used]
                buffer[row : row + len(part), :, part._first + shift : width] = used
                row += len(part)
            getattr(both, name)[layer] = buffer
    both.settle()
    return both


def _roomy(tensor: Tensor, columns: int) -> Tensor:
    """A copy with more columns."""
    rows, heads, used, size = tensor.shape
    buffer = tensor.new_empty(rows, heads, columns, size)
    buffer[:, :, :used] = tensor
    return buffer
