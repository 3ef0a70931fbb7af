"""Keys and values of rows that have ended, kept until a later prompt begins with the same tokens."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

MAX_BYTES = 1 << 30
"""What parked rows may take unless told otherwise; a constant, for a run must not depend on the machine's memory."""


class CacheBlock:
    """Keys and values of rows that ended together: `[tokens, heads, head size]` for each layer, padding left out.

    Its memory is free when none of its rows is kept any more.
    """

    def __init__(self, keys: dict[int, Tensor], values: dict[int, Tensor]) -> None:
        self.keys, self.values = keys, values
        self.rows = 0

    @property
    def num_bytes(self) -> int:
        """What it takes."""
        return sum(part.nbytes for part in (*self.keys.values(), *self.values.values()))


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """The first `length` tokens of a row: tokens `[first, first + length)` of a block."""

    block: CacheBlock
    first: int
    length: int


class PrefixCache:
    """Parked rows of one policy, by keys that name what goes on later: an episode, a dialogue.

    It lives no longer than the weights that it was made with: an update makes all of it wrong, and nothing here can
    see that. When it takes more than `max_bytes`, the rows parked first are dropped; dropped rows are read whole.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0  # of parked rows, and of rows that were taken and not released
        self.read_tokens = 0  # prompt tokens that decoding has read
        self.reused_tokens = 0  # prompt tokens that it did not have to read
        self._entries: dict[Hashable, tuple[np.ndarray, Prefix]] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, keys: Sequence[Hashable], ids: Sequence[np.ndarray], prefixes: Sequence[Prefix]) -> None:
        """Parks rows that stand for these tokens; what was parked under their keys is dropped."""
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
        """What is parked under a key, as far as the prompt begins with it and goes on after; `release` it when read."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        tokens, prefix = entry
        length = min(len(tokens), len(prompt) - 1)  # the last token is read for what follows it
        differ = np.flatnonzero(tokens[:length] != prompt[:length])
        length = int(differ[0]) if len(differ) else length
        if length <= 0:
            self.release(prefix)
            return None
        return Prefix(prefix.block, prefix.first, length)

    def release(self, prefix: Prefix) -> None:
        """Says that the keys and values of a prefix are not needed any more."""
        prefix.block.rows -= 1
        if not prefix.block.rows:
            self.num_bytes -= prefix.block.num_bytes

    def drop(self, keys: Sequence[Hashable]) -> None:
        """Forgets rows that nobody will continue."""
        for key in keys:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self.release(entry[1])
