"""Waiting prompts, and what one forward reads of them: distinct prompts once, or the tokens after a cached prefix."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ippo_cli.rollout.continuous_batching import ContinuousBatching
from ippo_cli.rollout.decode_state import DecodeState
from ippo_cli.rollout.fixed_slots import FixedSlots
from ippo_cli.rollout.prefix_cache import Prefix, PrefixCache

REFILL_FRACTION = 0.25
"""Waiting prompts are prefilled when this fraction of the batch is free: a prefill costs about a step, a free slot
little.
"""
MAX_PREFILL_TOKENS = 8192
"""Prompt tokens, padding included, that one forward reads at most."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Input of one prefill forward: each distinct prompt once, with the rows that use it."""

    rows: np.ndarray  # [n] row numbers
    ids: Tensor  # [k, P] tokens to read, left-padded
    lengths: np.ndarray  # [k] number of tokens
    prompt_index: np.ndarray  # [n] index of each row's prompt among the k
    source_rows: np.ndarray  # [k] the first row number of each prompt
    prefixes: list[Prefix]  # cached prefix of each of the k: for all of them, or empty


class PromptQueue:
    """Waiting prompts: uncached prompts first, then the longest first, so that a prefill needs little padding."""

    def __init__(
        self,
        prompts: Sequence[np.ndarray],
        rows: np.ndarray,
        readers: np.ndarray | None,
        known: dict[int, Prefix],
        device: torch.device,
    ) -> None:
        """`readers`: the policy of each row; None if equal prompts must not be merged."""
        self._prompts, self._readers, self._known, self._device = prompts, readers, known, device
        self._lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)  # tokens to read
        for row, prefix in known.items():
            self._lengths[row] -= prefix.length
        whole = np.array([row not in known for row in rows.tolist()], dtype=bool)
        order = np.argsort(-self._lengths[rows], kind="stable")
        self._rows = np.concatenate([rows[order][whole[order]], rows[order][~whole[order]]])
        self._num_whole = int(whole.sum())

    def __len__(self) -> int:
        return len(self._rows)

    def pop_prefill(self, count: int) -> Prefill:
        """Up to `count` rows that fit one forward."""
        longest = int(self._lengths[self._rows[0]])
        copies, first = self._group_equal_prompts(
            min(count, self._num_whole or len(self._rows)), max(1, MAX_PREFILL_TOKENS // longest)
        )
        rows, self._rows = self._rows[: len(copies)], self._rows[len(copies) :]
        self._num_whole = max(0, self._num_whole - len(rows))
        first = rows[first]
        lengths = self._lengths[first]
        ids = np.zeros((len(first), longest), dtype=np.int64)
        parts = [self._prompts[row][-length:] for row, length in zip(first.tolist(), lengths.tolist(), strict=True)]
        ids[np.arange(longest) >= longest - lengths[:, None]] = np.concatenate(parts)
        known = [self._known.pop(row) for row in first.tolist() if row in self._known]
        return Prefill(rows, torch.from_numpy(ids).to(self._device), lengths, copies, first, known)

    def _group_equal_prompts(self, count: int, most: int) -> tuple[np.ndarray, list[int]]:
        """Group at most `count` next rows with at most `most` distinct prompts: the prompt index of each row, and the
        first row number of each prompt. Rows with a cached prefix are not merged.
        """
        if self._readers is None:
            alone = range(min(count, most))
            return np.array(alone), list(alone)
        numbers: dict[Hashable, int] = {}
        copies: list[int] = []
        first: list[int] = []
        for place, row in enumerate(self._rows[:count].tolist()):
            key = row if row in self._known else (self._readers[row], self._prompts[row].tobytes())
            if key not in numbers:
                if len(numbers) == most:
                    break
                numbers[key] = len(numbers)
                first.append(place)
            copies.append(numbers[key])
        return np.array(copies), first


class PrefixCacheSession:
    """The prefixes that one decoding call reads from the cache of earlier turns and stores there for later ones."""

    def __init__(self, runner: ContinuousBatching, cache: PrefixCache, keys: Sequence[Hashable]) -> None:
        self._runner, self._cache, self._keys = runner, cache, keys

    def find_prefixes(self, prompts: Sequence[np.ndarray], rows: np.ndarray) -> dict[int, Prefix]:
        """By row, the cached prefix of its prompt."""
        prefixes = {row: self._cache.take(self._keys[row], prompts[row]) for row in rows.tolist()}
        return {row: prefix for row, prefix in prefixes.items() if prefix is not None}

    def prefill(self, prefill: Prefill) -> Tensor:
        """Read prompts, or the tokens after their cached prefixes; logits `[n, V]` of the rows."""
        self._cache.read_tokens += int(prefill.lengths.sum())
        self._cache.reused_tokens += sum(prefix.length for prefix in prefill.prefixes)
        if not prefill.prefixes:
            return self._runner.prefill(prefill.ids, prefill.lengths, prefill.prompt_index)
        try:
            return self._runner.resume(prefill.ids, prefill.lengths, prefill.prefixes)
        finally:
            self.release(prefill.prefixes)

    def release(self, known: Iterable[Prefix]) -> None:
        """Release prefixes that are no longer needed."""
        for prefix in known:
            self._cache.release(prefix)

    def park(self, state: DecodeState, ended: np.ndarray) -> None:
        """Store the keys and values of live rows `[n]` bool that have ended."""
        rows = state.rows[ended]
        self._cache.put([self._keys[row] for row in rows], state.tokens_read(rows), self._runner.park(ended))

    def park_slots(self, state: DecodeState, rows: np.ndarray, slots: np.ndarray) -> None:
        """Store the keys and values of rows `[n]` that have ended in these slots."""
        assert isinstance(self._runner, FixedSlots)
        tokens = state.tokens_read(rows)
        prefixes = self._runner.copy_rows(slots, [len(part) for part in tokens])
        self._cache.put([self._keys[row] for row in rows], tokens, prefixes)


def prefill_count(live: int, waiting: int, batch_size: int, *, can_join: bool = True) -> int:
    """Number of waiting prompts to prefill now."""
    free = min(batch_size - live, waiting)
    worth = not live or (can_join and free >= min(waiting, math.ceil(REFILL_FRACTION * batch_size)))
    return free if worth else 0
