"""Forwards for models of any architecture: rows start together, finished ones are dropped, nobody joins."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Cache


class Waves:
    """Forwards of one model for one group of rows after another, through the cache that the model itself makes.

    For what `Continuous` cannot serve: recurrent layers, ALiBi, attention of a model's own. A model whose state is
    no `transformers` cache reads the whole sequence again at every step: slow, and right.
    """

    joins = False

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._accepts = inspect.signature(model.forward).parameters
        self._device = next(model.parameters()).device
        self._ids = self._mask = torch.empty(0, 0, dtype=torch.long, device=self._device)
        self._state: dict[str, Cache] = {}

    @contextmanager
    def session(self) -> Iterator[None]:
        """Nothing to prepare."""
        yield

    def fill(self, ids: Tensor, lengths: np.ndarray) -> Tensor:
        """Reads left-padded prompts `[k, P]`, forgetting all other rows; logits `[k, V]` after each."""
        self._state, self._ids = {}, ids
        starts = torch.from_numpy(ids.shape[1] - lengths).to(ids.device)
        self._mask = (torch.arange(ids.shape[1], device=ids.device) >= starts[:, None]).long()
        return self._forward(ids)

    def step(self, tokens: Tensor) -> Tensor:
        """Reads one token for each row; logits `[n, V]` after it."""
        self._ids = torch.cat([self._ids, tokens[:, None]], dim=1)
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        return self._forward(tokens[:, None] if self._state else self._ids)

    def idle(self) -> None:
        """The smallest forward there is, for ranks that must take part in another rank's."""
        self._model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=self._device))

    def keep(self, alive: np.ndarray) -> np.ndarray:
        """Drops the rows that are not alive; returns, for each row now, which row it was."""
        order = np.flatnonzero(alive)
        places = torch.from_numpy(order).to(self._device)
        self._ids, self._mask = self._ids[places], self._mask[places]
        for cache in self._state.values():
            cache.reorder_cache(places)
        return order

    def _forward(self, ids: Tensor) -> Tensor:
        width = ids.shape[1]
        # Recurrent state holds no columns that a mask could hide: only the prompt needs one.
        options: dict[str, Any] = {"attention_mask": None if "cache_params" in self._state else self._mask}
        if "position_ids" in self._accepts:
            options["position_ids"] = (self._mask.cumsum(dim=1) - 1).clamp_(min=0)[:, -width:]
        output = self._model(input_ids=ids, use_cache=True, **options, **self._state)
        states = {name: output.get(name) for name in ("past_key_values", "cache_params")}
        self._state = {name: state for name, state in states.items() if isinstance(state, Cache)}
        return output.logits[:, -1]
