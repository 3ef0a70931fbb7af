"""Ideal cost of an iteration's tokens: bare forward and backward passes over exactly these tokens."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, LlamaForCausalLM

Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class TurnTokens:
    """Tokens of one agent's turn over all rows; if rows differ, each processes the mean number."""

    kept: int  # tokens with keys and values from earlier turns
    read: int  # the prompt, or the last generated token and the observation after it
    written: list[int]  # generated tokens of each row


class _Columns(Cache):
    """Keys and values in one preallocated buffer per layer; a step writes one column and attends to a slice."""

    def __init__(self, model: LlamaForCausalLM, rows: int, columns: int) -> None:
        config, weight = model.config, model.lm_head.weight
        size = config.hidden_size // config.num_attention_heads
        shape = (2, config.num_hidden_layers, rows, config.num_key_value_heads, columns, size)
        self._held = torch.empty(shape, dtype=weight.dtype, device=weight.device)  # pyright: ignore[reportCallIssue]
        self._used = 0
        self.layers = []

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        rows, _heads, new, _size = key_states.shape
        end = self._used + new
        keys, values = self._held[:, layer_idx, :rows]
        keys[:, :, self._used : end] = key_states
        values[:, :, self._used : end] = value_states
        if layer_idx == self._held.shape[1] - 1:
            self._used = end
        return keys[:, :, :end], values[:, :, :end]

    def keep(self, columns: int) -> None:
        """Keep the first `columns` and continue after them."""
        self._used = columns

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._used

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._used + query_length, 0


class Ideal:
    """Times bare passes of a separate model with the agents' shape and dtype."""

    def __init__(self, model: LlamaForCausalLM, *, micro_batch_tokens: int) -> None:
        self._model = model
        self._value = nn.Linear(model.config.hidden_size, 1).to(model.dtype).to(model.device)
        self._micro_batch_tokens = micro_batch_tokens
        # transformers 5.24 renamed this argument.
        self._cache_key = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def decode(self, turns: Sequence[TurnTokens]) -> float:
        """Decode all rows at once, turn by turn, with the keys and values of earlier turns; no sampling, no filters."""
        model, device = self._model.eval(), self._model.device
        began = _now(device)
        with torch.no_grad():
            rows = max(len(turn.written) for turn in turns)
            cache = _Columns(model, rows, max(turn.kept + turn.read + max(turn.written) for turn in turns))
            for turn in turns:
                self._decode_turn(cache, turn)
        return _now(device) - began

    def _decode_turn(self, cache: _Columns, turn: TurnTokens) -> None:
        """Decode one turn, longest rows first, so that unfinished rows are always a slice."""
        lengths, model, device = sorted(turn.written, reverse=True), self._model, self._model.device
        cache.keep(turn.kept)
        ids = torch.full((len(lengths), turn.read), 5, device=device)
        model(input_ids=ids, **{self._cache_key: cache}, use_cache=True, logits_to_keep=1)
        # All positions are visible: a mask of four axes is used unchanged.
        mask = torch.zeros(1, 1, 1, 1, device=device, dtype=model.dtype)
        live = len(lengths)
        for step in range(1, lengths[0]):
            while lengths[live - 1] <= step:
                live -= 1
            positions = torch.full((live, 1), turn.kept + turn.read + step - 1, device=device)
            model(
                input_ids=ids[:live, :1],
                position_ids=positions,
                attention_mask=mask,
                **{self._cache_key: cache},
                use_cache=True,
            )

    def policy_pass(self, lengths: Sequence[int], actions: Sequence[int]) -> float:
        """Time forward and backward of all action log-probabilities; `lengths` counts all tokens of each row."""
        return self._train(self._nll(actions), lengths)

    def policy_forward(self, lengths: Sequence[int], actions: Sequence[int]) -> float:
        """Time the forward pass of action log-probabilities, as for a reference."""
        return self._read(self._nll(actions), lengths)

    def value_pass(self, lengths: Sequence[int]) -> float:
        """Time forward and backward of values."""
        return self._train(self._values, lengths)

    def value_forward(self, lengths: Sequence[int]) -> float:
        """Time the forward pass of values."""
        return self._read(self._values, lengths)

    def _nll(self, actions: Sequence[int]) -> Loss:
        last = round(sum(actions) / len(actions))  # number of positions with logits; which ones does not matter

        def loss(ids: Tensor) -> Tensor:
            hidden = self._model.model(input_ids=ids, use_cache=False).last_hidden_state
            logits = self._model.lm_head(hidden[:, -last - 1 : -1]).float()
            return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, -last:].flatten())

        return loss

    def _values(self, ids: Tensor) -> Tensor:
        hidden = self._model.model(input_ids=ids, use_cache=False).last_hidden_state
        return self._value(hidden).float().square().mean()

    def _read(self, loss: Loss, lengths: Sequence[int]) -> float:
        began = _now(self._model.device)
        with torch.no_grad():
            for ids in self._batches(lengths):
                loss(ids)
        return _now(self._model.device) - began

    def _train(self, loss: Loss, lengths: Sequence[int]) -> float:
        self._model.train()
        began = _now(self._model.device)
        for ids in self._batches(lengths):
            loss(ids).backward()
        spent = _now(self._model.device) - began
        self._model.zero_grad(set_to_none=True)
        self._value.zero_grad(set_to_none=True)
        return spent

    def _batches(self, lengths: Sequence[int]) -> list[Tensor]:
        """Return batches with the same number of tokens without padding: every row has the mean length."""
        total = sum(lengths)
        width = round(total / len(lengths))
        rows, at_once = round(total / width), max(self._micro_batch_tokens // width, 1)
        device = self._model.device
        return [torch.full((min(at_once, rows - first), width), 5, device=device) for first in range(0, rows, at_once)]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
