"""Prefix cache: keys and values of finished rows, for later prompts that begin with the same tokens."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

MAX_BYTES = 1 << 30
"""Default memory limit of the cache; a constant, since a run must not depend on the machine's memory."""


class CacheBlock:
    """Keys and values of rows that ended together: `[tokens, heads, head size]` for each layer, without padding.

    Its memory is freed when none of its rows is cached any more.
    """

    def __init__(self, keys: dict[int, Tensor], values: dict[int, Tensor]) -> None:
        self.keys, self.values = keys, values
        self.rows = 0

    @property
    def num_bytes(self) -> int:
        """Memory in bytes."""
        return sum(part.nbytes for part in (*self.keys.values(), *self.values.values()))


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """The first `length` tokens of a row: tokens `[first, first + length)` of a block."""

    block: CacheBlock
    first: int
    length: int


class PrefixCache:
    """Cached rows of one policy, by keys of the conversation (episode, dialogue) that later prompts continue.

    Clear it after every update of the weights: outdated entries are not detected. Above `max_bytes`, the oldest rows
    are dropped and later read whole.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0  # of cached rows, and of rows that are taken and not yet released
        self.read_tokens = 0  # prompt tokens read by decoding
        self.reused_tokens = 0  # prompt tokens reused from the cache
        self._entries: dict[Hashable, tuple[np.ndarray, Prefix]] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, keys: Sequence[Hashable], ids: Sequence[np.ndarray], prefixes: Sequence[Prefix]) -> None:
        """Cache rows with these tokens; earlier entries of their keys are dropped."""
        for key, tokens, prefix in zip(keys, ids, prefixes, strict=True):
            assert len(tokens) == prefix.length
            self.drop([key])
            if not prefix.block.rows:
                self.num_bytes += prefix.block.num_bytes
            prefix.block.rows += 1
            self._entries[key] = (tokens, prefix)
        while self.num_bytes > self.max_bytes and self._entries:
            self.drop([next(iter(self._entries))])

    def take(self, key: Hashable, prompt: np.ndarray) -> Prefix | None:
        """Take the entry of a key, up to the longest proper prefix of the prompt; `release` it after reading."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        tokens, prefix = entry
        length = min(len(tokens), len(prompt) - 1)  # the last prompt token must be read for its logits
        differ = np.flatnonzero(tokens[:length] != prompt[:length])
        length = int(differ[0]) if len(differ) else length
        if length <= 0:
            self.release(prefix)
            return None
        return Prefix(prefix.block, prefix.first, length)

    def release(self, prefix: Prefix) -> None:
        """Release the keys and values of a prefix."""
        prefix.block.rows -= 1
        if not prefix.block.rows:
            self.num_bytes -= prefix.block.num_bytes

    def drop(self, keys: Sequence[Hashable]) -> None:
        """Drop rows that no later prompt continues."""
        for key in keys:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self.release(entry[1])
