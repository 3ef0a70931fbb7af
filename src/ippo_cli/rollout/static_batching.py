"""Static batching for models with recurrent or custom state: in waves with their own cache, or without one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from ippo_cli.rollout.continuous_batching import language_model


class StaticBatching:
    """Forward passes for one group of rows after another, through the model's own cache.

    For recurrent layers, ALiBi and custom attention. Rows start together, and the slots of finished rows stay empty
    until all have finished.
    """

    can_join = False
    can_copy = False

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._accepts = inspect.signature(language_model(model).forward).parameters
        self._device = next(model.parameters()).device
        self._mask = torch.empty(0, 0, dtype=torch.long, device=self._device)
        self._state: dict[str, Cache] = {}

    @classmethod
    def supports(cls, model: nn.Module) -> bool:
        """Always true: the model is tested by the caller."""
        return True

    @contextmanager
    def session(self, max_new_tokens: int | None = None) -> Iterator[None]:
        """No-op."""
        yield

    def prefill(self, ids: Tensor, lengths: np.ndarray, copies: np.ndarray | None = None) -> Tensor:
        """Read left-padded prompts `[k, P]` and drop all other rows; logits `[k, V]` after each."""
        assert copies is None or len(copies) == len(ids)
        self._state = {}
        starts = torch.from_numpy(ids.shape[1] - lengths).to(ids.device)
        self._mask = (torch.arange(ids.shape[1], device=ids.device) >= starts[:, None]).long()
        return self.compute_logits(ids)

    def decode(self, tokens: Tensor) -> Tensor:
        """Read one token for each row; logits `[n, V]` after it."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        return self.compute_logits(tokens[:, None])

    def dummy_forward(self) -> None:
        """Run the smallest possible forward, for ranks that must join another rank's collective."""
        self._model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=self._device), use_cache=False)

    def keep(self, alive: np.ndarray) -> np.ndarray:
        """Drop the rows that are not alive; return the previous index of each remaining row."""
        order = np.flatnonzero(alive)
        places = torch.from_numpy(order).to(self._device)
        self._mask = self._mask[places]
        for cache in self._state.values():
            cache.reorder_cache(places)  # pyright: ignore[reportArgumentType]
        return order

    def compute_logits(self, ids: Tensor) -> Tensor:
        width = ids.shape[1]
        # Recurrent state has no columns to mask: only the prompt needs a mask.
        columns = not self._state or any(_has_columns(cache) for cache in self._state.values())
        options: dict[str, Any] = {"attention_mask": self._mask if columns else None}
        if "position_ids" in self._accepts:
            options["position_ids"] = (self._mask.cumsum(dim=1) - 1).clamp_(min=0)[:, -width:]
        if "logits_to_keep" in self._accepts:
            options["logits_to_keep"] = 1
        output = self._model(input_ids=ids, use_cache=True, **options, **self._state)
        # By type: the cache's name differs by model and by version of transformers.
        self._state = {name: value for name, value in output.items() if isinstance(value, Cache)}
        return output.logits[:, -1]


def _has_columns(cache: Cache) -> bool:
    """Whether any layer holds keys and values, one column for each token read."""
    return any(isinstance(layer, CacheLayerMixin) for layer in cache.layers)


class Recompute:
    """Recomputes every sequence from its start at every step: slow, and correct for any causal model."""

    can_join = True
    can_copy = False

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._ids = torch.empty(0, 0, dtype=torch.long, device=self._device)  # right-padded: needs no mask
        self._lengths = np.zeros(0, dtype=np.int64)

    @contextmanager
    def session(self, max_new_tokens: int | None = None) -> Iterator[None]:
        """No-op."""
        yield

    def prefill(self, ids: Tensor, lengths: np.ndarray, copies: np.ndarray | None = None) -> Tensor:
        """Read left-padded prompts `[k, P]` as the last rows; logits `[k, V]` after each."""
        assert copies is None or len(copies) == len(ids)
        old, width = len(self._lengths), ids.shape[1]
        columns = np.minimum(np.arange(width) + (width - lengths)[:, None], width - 1)
        self._lengths = np.concatenate([self._lengths, lengths])
        self._widen()
        self._ids = torch.cat([self._ids, self._ids.new_zeros(len(lengths), self._ids.shape[1])])
        self._ids[old:, :width] = ids.gather(1, torch.from_numpy(columns).to(ids.device))
        return self.compute_logits(slice(old, None))

    def decode(self, tokens: Tensor) -> Tensor:
        """Read one token for each row; logits `[n, V]` after it."""
        self._lengths = self._lengths + 1
        self._widen()
        self._ids[np.arange(len(tokens)), self._lengths - 1] = tokens
        return self.compute_logits(slice(None))

    def dummy_forward(self) -> None:
        """Run the smallest possible forward, for ranks that must join another rank's collective."""
        self._model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=self._device), use_cache=False)

    def keep(self, alive: np.ndarray) -> np.ndarray:
        """Drop the rows that are not alive; return the previous index of each remaining row."""
        order = np.flatnonzero(alive)
        self._ids, self._lengths = self._ids[order], self._lengths[order]
        return order

    def _widen(self) -> None:
        missing = int(self._lengths.max(initial=0)) - self._ids.shape[1]
        if missing > 0:
            self._ids = nn.functional.pad(self._ids, (0, missing))

    def compute_logits(self, rows: slice) -> Tensor:
        lengths = self._lengths[rows]
        logits = self._model(input_ids=self._ids[rows, : int(lengths.max())], use_cache=False).logits
        return logits[np.arange(len(lengths)), lengths - 1]
