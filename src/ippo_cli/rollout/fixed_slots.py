"""Fixed slots: rows in the slots of one preallocated cache, where no size depends on a value and no row moves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ippo_cli.models.packing import Attention
from ippo_cli.rollout.continuous_batching import ContinuousBatching, attend_newest
from ippo_cli.rollout.kv_cache import KVCacheGroup
from ippo_cli.rollout.prefix_cache import CacheBlock, Prefix

SMALLEST_WIDTH = 256
"""Columns of a new cache. It doubles when a row needs more: a step attends to all columns."""


class FixedSlots(ContinuousBatching):
    """Forward passes over `slots` rows, of which some may be free: the same operations whatever the rows contain.

    A row's tokens are in the first columns of its slot. A step reads one token in every slot, those of free slots
    included, so that it can be recorded as a CUDA graph. Prompts are read as in `ContinuousBatching` and then copied.
    """

    def __init__(self, model: nn.Module, slots: int = 8, max_columns: int | None = None) -> None:
        """`max_columns`: the most tokens of a row, prompt included; None: unknown."""
        super().__init__(model)
        self._max_columns = max_columns
        self._copies: np.ndarray | None = None  # the prompt index of each row of the prefill in progress
        self.num_tokens = torch.zeros(slots, dtype=torch.long, device=self._device)
        """`[slots]`: tokens that each slot has read; the column of its next token."""
        self.width = 0
        self._keys: dict[int, Tensor] = {}  # by layer, [slots, heads, width, head size]
        self._values: dict[int, Tensor] = {}
        self._numbers = torch.arange(slots, device=self._device)
        self._rows = np.zeros(0, dtype=np.int64)  # the slots of live rows, in their order
        self._columns = self.num_tokens
        self._masks: dict[int | None, Tensor] = {}
        self._lengths = np.zeros(slots, dtype=np.int64)  # upper bounds of `num_tokens`

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def live_slots(self) -> np.ndarray:
        """The slots of live rows, in their order; the last ones are those of the latest prefill."""
        return self._rows

    @contextmanager
    def session(self, max_new_tokens: int | None = None) -> Iterator[None]:
        """See `ContinuousBatching`; groups of prompts are copied, so they reserve no columns."""
        with super().session(0):
            yield

    def prefill(self, ids: Tensor, lengths: np.ndarray, copies: np.ndarray | None = None) -> Tensor:
        """See `ContinuousBatching`. Each distinct prompt is stored once before it is copied to the rows' slots."""
        self._copies = copies
        try:
            logits = super().prefill(ids, lengths)
        finally:
            self._copies = None
        return logits if copies is None else logits[torch.from_numpy(copies).to(self._device)]

    def decode(self, tokens: Tensor) -> Tensor:
        """Read one token for each live row; logits `[n, V]` after it."""
        places = torch.from_numpy(self._rows).to(self._device)
        self.reserve_column()
        logits = self.read_tokens(torch.zeros_like(self._numbers).index_copy(0, places, tokens))
        self.num_tokens[places] += 1
        return logits[places]

    def reserve_column(self) -> None:
        """Make room for one more token in every live row."""
        self._lengths[self._rows] += 1
        if self._max_columns is not None:  # rows that have ended are counted until the host knows it
            np.minimum(self._lengths, self._max_columns, out=self._lengths)
        if len(self._rows):
            self._resize(int(self._lengths[self._rows].max()))

    def read_tokens(self, tokens: Tensor) -> Tensor:
        """Read one token in every slot `[slots]`, at column `num_tokens`; logits `[slots, V]`."""
        self._columns = self.num_tokens.clamp(max=self.width - 1)
        self._masks = {}
        self._decoding = True
        try:
            return self.compute_logits(tokens[:, None], self._columns[:, None], self._empty_mask())
        finally:
            self._decoding = False

    def keep(self, alive: np.ndarray) -> np.ndarray:
        """Free the slots of rows that are not alive; return the previous index of each remaining row."""
        self.free(self._rows[~alive])
        return np.flatnonzero(alive)

    def free(self, slots: np.ndarray) -> None:
        """Free some slots. Their position returns to 0: some rotary embeddings depend on the largest of all rows."""
        self._rows = self._rows[~np.isin(self._rows, slots)]
        self.num_tokens[torch.from_numpy(slots).to(self._device)] = 0

    def park(self, rows: np.ndarray) -> list[Prefix]:
        """Return the keys and values of all tokens read by some live rows, `[n]` bool."""
        slots = self._rows[rows]
        counts = self.num_tokens[torch.from_numpy(slots).to(self._device)].tolist()
        return self.copy_rows(slots, counts)

    def copy_rows(self, slots: np.ndarray, counts: list[int]) -> list[Prefix]:
        """A copy of the first `counts` tokens of some slots, for reuse by later turns."""
        source = self._token_places(slots, np.array(counts))
        keys, values = (
            {layer: buffer.transpose(1, 2)[source] for layer, buffer in buffers.items()}
            for buffers in (self._keys, self._values)
        )
        block, ends = CacheBlock(keys, values), np.cumsum(counts).tolist()
        return [Prefix(block, end - count, count) for end, count in zip(ends, counts, strict=True)]

    def attend(
        self,
        plain: Attention,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of one layer: of every slot to its own tokens, or unmodified while prompts are prefilled."""
        if not self._decoding:
            return super().attend(plain, module, query, key, value, mask, **options)
        layer: int = module.layer_idx  # pyright: ignore[reportAssignmentType]
        keys, values = self._keys[layer], self._values[layer]
        keys[self._numbers, :, self._columns] = key[:, :, 0]
        values[self._numbers, :, self._columns] = value[:, :, 0]
        window = self._windows[layer]
        if window not in self._masks:
            self._masks[window] = self._build_mask(query.dtype, window)
        return attend_newest(plain, module, query, keys, values, self._masks[window], **options), None

    def _build_mask(self, dtype: torch.dtype, window: int | None) -> Tensor:
        """Additive mask `[slots, 1, 1, width]` of the tokens read so far, the newest one included."""
        columns, newest = torch.arange(self.width, device=self._device), self._columns[:, None]
        hidden = columns > newest
        if window is not None:
            hidden |= columns <= newest - window
        mask = torch.zeros(hidden.shape, dtype=dtype, device=self._device).masked_fill(hidden, -math.inf)
        return mask[:, None, None]

    def _add(self, group: KVCacheGroup, positions: Tensor) -> None:
        """Copy the rows of a group, or `_copies` of them, to free slots; the group is freed layer by layer."""
        rows = np.arange(len(group)) if self._copies is None else self._copies
        free = np.setdiff1d(np.arange(len(self)), self._rows)[: len(rows)]
        assert len(free) == len(rows), "no free slot"
        starts = group.starts[rows]
        counts = group.used - starts
        self._lengths[free] = counts
        self._rows = np.concatenate([self._rows, free])
        self._allocate(group)
        self._resize(int(self._lengths[self._rows].max()))
        row, column = np.repeat(rows, counts), _count_within(counts) + np.repeat(starts, counts)
        source = torch.from_numpy(row).to(self._device), torch.from_numpy(column).to(self._device)
        to = self._token_places(free, counts)
        for buffers, parts in ((self._keys, group.keys), (self._values, group.values)):
            for layer in list(parts):
                buffers[layer].transpose(1, 2)[to] = parts.pop(layer).transpose(1, 2)[source]
        self.num_tokens[torch.from_numpy(free).to(self._device)] = positions[torch.from_numpy(rows).to(self._device)]

    def _allocate(self, group: KVCacheGroup) -> None:
        for buffers, parts in ((self._keys, group.keys), (self._values, group.values)):
            for layer, part in parts.items():
                if layer not in buffers:
                    self.width = self.width or SMALLEST_WIDTH
                    # Zeros: a masked value is still multiplied by 0 and must be finite.
                    buffers[layer] = part.new_zeros(len(self), part.shape[1], self.width, part.shape[3])

    def _resize(self, columns: int) -> None:
        """Double the width until it has so many columns."""
        if columns <= self.width:
            return
        width = cache_width(columns)
        for buffers in (self._keys, self._values):
            for layer, buffer in buffers.items():  # layer by layer: old and new are never in memory together
                wider = buffer.new_zeros(*buffer.shape[:2], width, buffer.shape[3])
                wider[:, :, : self.width] = buffer
                buffers[layer] = wider
        self.width = width

    def _token_places(self, slots: np.ndarray, counts: np.ndarray) -> tuple[Tensor, Tensor]:
        """Slot and column of the first `counts` tokens of some slots."""
        slot = torch.from_numpy(np.repeat(slots, counts)).to(self._device)
        return slot, torch.from_numpy(_count_within(counts)).to(self._device)


def cache_width(columns: int) -> int:
    """The width of a cache that holds so many columns."""
    return SMALLEST_WIDTH << max(0, math.ceil(math.log2(columns / SMALLEST_WIDTH)))


def _count_within(counts: np.ndarray) -> np.ndarray:
    """0 to count - 1 for each count, `[sum]`."""
    return np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
