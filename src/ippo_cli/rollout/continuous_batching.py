"""Continuous batching: groups of rows share every matrix product but attend separately; rows may join at any time."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import eager_mask, sdpa_mask

from ippo_cli.models.packing import PACKED, VARLEN, Attention, library_attention
from ippo_cli.rollout.kv_cache import KVCacheGroup, ResumedCache, merge_groups
from ippo_cli.rollout.prefix_cache import Prefix

GROUPS_ON_CPU = 6
"""On a CPU a forward costs arithmetic, and separate groups attend to fewer columns."""
GROUPS_ELSEWHERE = 1
"""On a GPU a forward costs kernel launches, and merging groups costs little memory traffic."""

_active_runner: ContextVar[ContinuousBatching] = ContextVar("running")


class ContinuousBatching:
    """Forward passes of one model that rows may join at any time, through a custom attention interface.

    The weights process one batch `[rows, 1]`, in the order of the groups. Each group attends to its own keys and
    values, which are only as wide as the group is old: no padding between long and short rows is computed.
    """

    can_join = True
    can_copy = True

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._max_groups = GROUPS_ON_CPU if self._device.type == "cpu" else GROUPS_ELSEWHERE
        layers = DynamicCache(config=text_config(model)).layers
        # The sliding window of each attention layer; None is full attention.
        self._windows = {number: getattr(layer, "sliding_window", None) for number, layer in enumerate(layers)}
        self._groups: list[KVCacheGroup] = []
        self._positions = torch.empty(0, dtype=torch.long, device=self._device)
        self._prefilling: tuple[KVCacheGroup, Tensor | None] | None = None  # and the prompt index of each of its rows
        self._resumed_cache: ResumedCache | None = None
        self._max_ahead: int | None = None
        self._decoding = False

    @classmethod
    def supports(cls, model: nn.Module) -> bool:
        """Whether all state is full or sliding-window attention through the library's interface, with position ids."""
        lm, config = language_model(model), text_config(model)
        layers = DynamicCache(config=config).layers
        return (
            lm._supports_attention_backend
            and all(part._attn_implementation in _ATTENTION_NAMES for part in _attention_configs(model))
            and "position_ids" in inspect.signature(lm.forward).parameters
            and len(layers) == config.num_hidden_layers
            and {type(layer) for layer in layers} <= {DynamicLayer, DynamicSlidingWindowLayer}
            # A cache cannot distinguish chunks from sliding windows.
            and "chunked_attention" not in (getattr(config, "layer_types", None) or ())
            and getattr(config, "attention_chunk_size", None) is None
        )

    @contextmanager
    def session(self, max_new_tokens: int | None = None) -> Iterator[None]:
        """Set the model's attention interface for the duration of decoding, and restore it afterwards."""
        self._max_ahead = max_new_tokens
        configs = _attention_configs(self._model)
        names = [str(config._attn_implementation) for config in configs]
        token = _active_runner.set(self)
        try:
            for config, name in zip(configs, names, strict=True):
                config._attn_implementation_internal = _ATTENTION_NAMES[name]  # the setter changes other configs too
            yield
        finally:
            for config, name in zip(configs, names, strict=True):
                config._attn_implementation_internal = name
            _active_runner.reset(token)

    def prefill(self, ids: Tensor, lengths: np.ndarray, copies: np.ndarray | None = None) -> Tensor:
        """Read left-padded prompts `[k, P]` as the last rows; logits `[n, V]`, see `ModelRunner`."""
        width = ids.shape[1]
        rows = np.arange(len(ids)) if copies is None else copies
        places = None if len(rows) == len(ids) else torch.from_numpy(rows).to(ids.device)
        group = KVCacheGroup((width - lengths)[rows], width, self._max_ahead)
        starts = torch.from_numpy(width - lengths).to(ids.device)
        positions = torch.arange(width, device=ids.device) - starts[:, None]
        mask = None if (lengths == width).all() else positions >= 0
        self._prefilling = group, places
        try:
            logits = self.compute_logits(ids, positions.clamp(min=0), mask, logits_to_keep=1)
        finally:
            self._prefilling = None
        assert group.keys.keys() == self._windows.keys(), "some layer does not use the attention interface"
        self._add(group, width - (starts if places is None else starts[places]))
        return logits if places is None else logits[places]

    def resume(self, ids: Tensor, lengths: np.ndarray, prefixes: Sequence[Prefix]) -> Tensor:
        """Read the tokens after the prefixes, left-padded `[k, P]`, as the last rows; logits `[k, V]` after each."""
        self._resumed_cache = ResumedCache(prefixes, lengths, self._max_ahead)
        group = self._resumed_cache.group
        starts = torch.from_numpy(group.starts).to(ids.device)
        positions = torch.arange(group.used - ids.shape[1], group.used, device=ids.device) - starts[:, None]
        try:
            logits = self.compute_logits(ids, positions.clamp(min=0), self._empty_mask(), logits_to_keep=1)
        finally:
            self._resumed_cache = None
        self._add(group, group.used - starts)
        return logits

    def park(self, rows: np.ndarray) -> list[Prefix]:
        """Return the keys and values of all tokens read by some live rows, `[n]` bool."""
        parked, row = [], 0
        for group in self._groups:
            part = np.flatnonzero(rows[row : row + len(group)])
            parked += group.copy_rows(part) if len(part) else []
            row += len(group)
        return parked

    def decode(self, tokens: Tensor) -> Tensor:
        """Read one token for each row; logits `[n, V]` after it."""
        for group in self._groups:
            group.advance()
        self._decoding = True
        try:
            logits = self.compute_logits(tokens[:, None], self._positions[:, None], self._empty_mask())
        finally:
            self._decoding = False
        self._positions += 1
        return logits

    def dummy_forward(self) -> None:
        """Run the smallest possible forward, for ranks that must join another rank's collective."""
        token = torch.zeros(1, 1, dtype=torch.long, device=self._device)
        self.compute_logits(token, token, None)

    def keep(self, alive: np.ndarray) -> np.ndarray:
        """Drop the rows that are not alive; return the previous index of each remaining row."""
        orders, row = [], 0
        for group in self._groups:
            size = len(group)
            part = alive[row : row + size]
            orders.append(row + (np.arange(size) if part.all() else group.keep(part)))
            row += size
        self._groups = [group for group in self._groups if len(group)]
        order = np.concatenate(orders)
        self._positions = self._positions[torch.from_numpy(order).to(self._device)]
        return order

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
        """Attention of one layer: of every group to its own columns, or unmodified while prompts are prefilled."""
        layer: int = module.layer_idx  # pyright: ignore[reportAssignmentType]
        if self._resumed_cache is not None:
            keys, values, mask = self._resumed_cache.extend(layer, key, value, self._windows[layer])
            return plain(module, query, keys, values, mask, **options)
        if not self._decoding:
            if self._prefilling is not None:
                group, places = self._prefilling
                group.store(layer, *((key, value) if places is None else (key[places], value[places])))
            return plain(module, query, key, value, mask, **options)
        window, outputs, row = self._windows[layer], [], 0
        for group in self._groups:
            part = slice(row, row + len(group))
            keys, values, mask = group.write(layer, key[part], value[part], window)
            outputs.append(attend_newest(plain, module, query[part], keys, values, mask, **options))
            row = part.stop
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs), None

    def compute_logits(self, ids: Tensor, positions: Tensor, mask: Tensor | None, **options: int) -> Tensor:
        output = self._model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False, **options)
        return output.logits[:, -1]

    def _empty_mask(self) -> Tensor:
        """A 4D mask, which the library passes through unchanged; groups use their own masks."""
        return torch.zeros(1, 1, 1, 1, device=self._device)

    def _add(self, group: KVCacheGroup, positions: Tensor) -> None:
        group.update_mask()
        self._groups.append(group)
        self._positions = torch.cat([self._positions, positions])
        if len(self._groups) > self._max_groups:
            self._merge_cheapest()

    def _merge_cheapest(self) -> None:
        """Merge the two adjacent groups that are cheapest to move; adjacency preserves the order of rows."""
        costs = [first.cells + second.cells for first, second in pairwise(self._groups)]
        place = costs.index(min(costs))
        self._groups[place : place + 2] = [merge_groups(*self._groups[place : place + 2])]


def attend_newest(
    plain: Attention,
    module: nn.Module,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    **options: Any,
) -> Tensor:
    """Attention of one token of each row, `[n, heads, 1, size]`, to all columns of `keys` and `values` `[n, key heads,
    width, size]` that the additive `mask` allows: `[n, 1, heads, size]`.
    """
    if plain.__name__ != "sdpa_attention_forward":
        return plain(module, query, keys, values, mask, **options)[0]
    # The query heads of one key head as query positions: keys are read once and never repeated.
    grouped = query.view(len(query), keys.shape[1], -1, query.shape[3])
    output = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=options.get("scaling"))
    return output.reshape(len(query), 1, query.shape[1], -1)


def language_model(model: nn.Module) -> PreTrainedModel:
    """The library's model inside a possible wrapper."""
    return next(part for part in model.modules() if isinstance(part, PreTrainedModel))


def text_config(model: nn.Module) -> PretrainedConfig:
    """The part of the model's config that describes its decoder."""
    return language_model(model).config.get_text_config(decoder=True)


def _attention_configs(model: nn.Module) -> list[PretrainedConfig]:
    """All configs that select the attention of the model's parts."""
    configs = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}
    return list(configs.values())


def _attend_by_group(
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The library's attention of that name, applied to every group separately while a model decodes."""
    plain = library_attention(name, module)
    return _active_runner.get().attend(plain, module, query, key, value, attention_mask, **options)


_ATTENTION_NAMES = {PACKED[VARLEN]: "ippo_cli_sdpa"}
for _name, _masks in (("sdpa", sdpa_mask), ("eager", eager_mask)):
    _ATTENTION_NAMES[_name] = _ATTENTION_NAMES[PACKED[_name]] = f"ippo_cli_{_name}"
    AttentionInterface.register(_ATTENTION_NAMES[_name], partial(_attend_by_group, _name))
    AttentionMaskInterface.register(_ATTENTION_NAMES[_name], _masks)
