"""Key-value caches of rows that started together: preallocated, one write column for all, no copy per step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ippo_cli.rollout.prefix_cache import CacheBlock, Prefix

COLUMNS_AHEAD = 128
"""Maximum of reserved free columns; when they are used up, the used columns are copied once."""

MASK_ALIGNMENT = 16
"""Torch's memory-efficient attention on GPUs reads a mask in blocks of 16 bytes. Torch copies masks with strides that
are not multiples of 16 elements, but does not check where a mask starts: "CUDA error: misaligned address".
"""


class KVCacheGroup:
    """The attention cache of rows aligned at their newest token.

    A row's tokens are in columns `[start, used)` of buffers `[rows, heads, columns, head size]`, one pair for each
    layer. All rows write the same column, so a step costs a slice, and no mask unless prompts differ in length. The
    last rows replace finished ones.
    """

    def __init__(self, starts: np.ndarray, used: int, max_ahead: int | None = None) -> None:
        self.starts = starts  # [rows] first column of each row
        self.used = used
        self.spare_columns = COLUMNS_AHEAD if max_ahead is None else min(COLUMNS_AHEAD, max_ahead)
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self._first = 0
        self._mask: Tensor | None = None  # [rows, 1, 1, columns from `_first` on]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def cells(self) -> int:
        """Used row-columns: the cost of moving this group."""
        return len(self) * (self.used - self._first)

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store the prompt's keys and values of one layer."""
        self.keys[layer] = _grow_columns(keys, self.used + self.spare_columns)
        self.values[layer] = _grow_columns(values, self.used + self.spare_columns)

    def advance(self) -> None:
        """Reserve one more column; `write` then fills it layer by layer."""
        some = next(iter(self.keys.values()))
        if self.used == some.shape[2]:
            self._move_left()
        self.used += 1

    def write(
        self, layer: int, keys: Tensor, values: Tensor, window: int | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Store the newest column and return the attention inputs: keys, values, additive mask (or none)."""
        mine, yours, rows, end = self.keys[layer], self.values[layer], len(self), self.used
        mine[:rows, :, end - 1 : end] = keys
        yours[:rows, :, end - 1 : end] = values
        first = self._first if window is None else max(self._first, end - window)
        mask = None
        if self._mask is not None:
            mask = self._mask[..., first - self._first : end - self._first]
            if (first - self._first) % MASK_ALIGNMENT:
                mask = mask.clone(memory_format=torch.contiguous_format)
        return mine[:rows, :, first:end], yours[:rows, :, first:end], mask

    def update_mask(self) -> None:
        """Recompute the visible columns after a change of rows: none before the oldest start, a mask if they differ."""
        self._first = int(self.starts.min())
        self._mask = None
        if (self.starts != self._first).any():
            some = next(iter(self.keys.values()))
            starts = torch.from_numpy(self.starts).to(some.device)
            width = -(-(some.shape[2] - self._first) // MASK_ALIGNMENT) * MASK_ALIGNMENT
            hidden = self._first + torch.arange(width, device=some.device) < starts[:, None]
            mask = torch.zeros(hidden.shape, dtype=some.dtype, device=some.device).masked_fill_(hidden, -math.inf)
            self._mask = mask[:, None, None]

    def keep(self, alive: np.ndarray) -> np.ndarray:
        """Drop the rows that are not alive; return the previous index of each remaining row."""
        remaining = int(alive.sum())
        order = np.arange(remaining)
        holes, movers = np.flatnonzero(~alive[:remaining]), remaining + np.flatnonzero(alive[remaining:])
        order[holes] = movers
        if len(holes):
            device = next(iter(self.keys.values())).device
            to, source = torch.from_numpy(holes).to(device), torch.from_numpy(movers).to(device)
            for buffers in (self.keys, self.values):
                for buffer in buffers.values():
                    part = buffer[:, :, self._first : self.used]
                    part[to] = part[source]
        self.starts = self.starts[order]
        if remaining:
            self.update_mask()
        return order

    def copy_rows(self, rows: np.ndarray) -> list[Prefix]:
        """A copy of these rows' keys and values, for reuse by later turns."""
        counts = self.used - self.starts[rows]
        ends = counts.cumsum()
        row = np.repeat(rows, counts)
        column = np.arange(len(row)) + np.repeat(self.used - ends, counts)
        some = next(iter(self.keys.values()))
        places = torch.from_numpy(row).to(some.device), torch.from_numpy(column).to(some.device)
        keys, values = (
            {layer: buffer.transpose(1, 2)[places] for layer, buffer in buffers.items()}
            for buffers in (self.keys, self.values)
        )
        block = CacheBlock(keys, values)
        return [Prefix(block, end - count, count) for end, count in zip(ends.tolist(), counts.tolist(), strict=True)]

    def _move_left(self) -> None:
        """Drop the columns that no row attends to and reserve new ones."""
        first, rows = self._first, len(self)
        width = self.used - first
        for buffers in (self.keys, self.values):
            for layer, buffer in buffers.items():
                buffers[layer] = _grow_columns(
                    buffer[:rows, :, first : self.used], width + max(self.spare_columns, width // 2)
                )
        self.starts, self.used = self.starts - first, width
        self.update_mask()


class ResumedCache:
    """A group of rows that begin with cached tokens, while one forward reads several next tokens per row."""

    def __init__(self, prefixes: Sequence[Prefix], lengths: np.ndarray, max_ahead: int | None) -> None:
        known = np.array([prefix.length for prefix in prefixes])
        starts = (known + lengths).max() - known - lengths
        self.group = KVCacheGroup(starts, int((known + lengths).max()), max_ahead)
        self._read = int(lengths.max())
        self._masks: dict[int | None, Tensor] = {}
        blocks: dict[CacheBlock, list[int]] = {}
        for row, prefix in enumerate(prefixes):
            blocks.setdefault(prefix.block, []).append(row)
        for block, places in blocks.items():
            rows = np.array(places)
            self.restore_rows(block, rows, np.array([prefixes[row].first for row in rows]), known[rows])
        device = next(iter(self.group.keys.values())).device
        # Padding before a short row's new tokens overlaps the cached ones.
        columns = torch.arange(self._read, device=device)
        self._is_new = columns >= self._read - torch.from_numpy(lengths).to(device)[:, None]
        self._ragged = bool((lengths != self._read).any())

    def extend(self, layer: int, keys: Tensor, values: Tensor, window: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Store the newest columns of one layer and return the attention inputs: keys, values, additive mask."""
        seen = [buffers[layer][:, :, : self.group.used] for buffers in (self.group.keys, self.group.values)]
        for buffer, new in zip(seen, (keys, values), strict=True):
            newest = buffer[:, :, -self._read :]
            newest.copy_(torch.where(self._is_new[:, None, :, None], new, newest) if self._ragged else new)
        if window not in self._masks:
            self._masks[window] = self.build_mask(keys, window)
        return seen[0], seen[1], self._masks[window]

    def restore_rows(self, block: CacheBlock, rows: np.ndarray, firsts: np.ndarray, counts: np.ndarray) -> None:
        """Copy the cached tokens of some rows to the start of these rows."""
        starts, within = self.group.starts[rows], np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        row, column, token = (
            np.repeat(rows, counts),
            np.repeat(starts, counts) + within,
            np.repeat(firsts, counts) + within,
        )
        device = next(iter(block.keys.values())).device
        to = torch.from_numpy(row).to(device), torch.from_numpy(column).to(device)
        source = torch.from_numpy(token).to(device)
        for buffers, parts in ((self.group.keys, block.keys), (self.group.values, block.values)):
            for layer, part in parts.items():
                if layer not in buffers:
                    _, heads, size = part.shape
                    # Zeros: a masked value is still multiplied by 0 and must be finite.
                    shape = (len(self.group), heads, self.group.used + self.group.spare_columns, size)
                    buffers[layer] = part.new_zeros(shape)
                buffers[layer].transpose(1, 2)[to] = part[source]

    def build_mask(self, keys: Tensor, window: int | None) -> Tensor:
        """`[rows, 1, columns read, columns]`: every new token attends to its row's tokens up to itself."""
        columns = torch.arange(self.group.used, device=keys.device)
        readers = columns[-self._read :, None]
        starts = torch.from_numpy(self.group.starts).to(keys.device)[:, None, None]
        seen = (columns <= readers) & (columns >= starts)
        if window is not None:
            seen &= readers - columns < window
        seen |= columns == readers  # padding attends to itself: a softmax over no entries is NaN
        mask = torch.zeros(seen.shape, dtype=keys.dtype, device=keys.device).masked_fill_(~seen, -math.inf)
        return mask[:, None]


def merge_groups(older: KVCacheGroup, younger: KVCacheGroup) -> KVCacheGroup:
    """Merge both groups, newest columns aligned; empties the two."""
    parts = (older, younger)
    width = max(part.used - part._first for part in parts)
    shifts = [width - part.used for part in parts]
    starts = [part.starts + shift for part, shift in zip(parts, shifts, strict=True)]
    both = KVCacheGroup(np.concatenate(starts), width, younger.spare_columns)
    for name in ("keys", "values"):
        for layer in list(getattr(older, name)):
            # Layer by layer, so that old and new are never in memory together.
            sources = [getattr(part, name).pop(layer) for part in parts]
            _, heads, _, size = sources[0].shape
            # Zeros: a masked value is still multiplied by 0 and must be finite.
            buffer = sources[0].new_zeros(len(both), heads, width + both.spare_columns, size)
            row = 0
            for part, source, shift in zip(parts, sources, shifts, strict=True):
                used = source[: len(part), :, part._first : part.used]
                buffer[row : row + len(part), :, part._first + shift : width] = used
                row += len(part)
            getattr(both, name)[layer] = buffer
    both.update_mask()
    return both


def _grow_columns(tensor: Tensor, columns: int) -> Tensor:
    """A copy with more columns."""
    rows, heads, used, size = tensor.shape
    buffer = tensor.new_empty(rows, heads, columns, size)
    buffer[:, :, :used] = tensor
    return buffer
