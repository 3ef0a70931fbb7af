"""The protocol of policies for generation."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ippo_cli.engine.rank_group import RankGroup
from ippo_cli.models.actor import MultiAdapterBatch, Policy
from ippo_cli.rollout.tensor_hash import TensorHash


class GenerationPolicy(Protocol):
    """A trainable or frozen policy used for generation."""

    name: str
    tokenizer: PreTrainedTokenizerBase

    @property
    def group(self) -> RankGroup:
        """The ranks that hold it. On other ranks it has a tokenizer and a configuration only."""
        ...

    @property
    def model_config(self) -> PretrainedConfig:
        """The configuration of the language model."""
        ...

    @property
    def shared_base(self) -> MultiAdapterBatch | None:
        """The model that can decode its rows in one batch with those of other agents; None without one."""
        ...

    @property
    def model_key(self) -> Hashable:
        """Equal for policies that sample from one language model; that of an adapter is its base."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of the language model's weights."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens that end a response."""
        ...

    @property
    def adapter_name(self) -> str | None:
        """The name of its adapter on the base; None for a whole model, or the base itself."""
        ...

    @property
    def adapter_rank(self) -> int:
        """The largest rank of its adapter; 0 without one."""
        ...

    @property
    def model_weights_key(self) -> Hashable:
        """Changes when the weights of the language model change, without those of adapters."""
        ...

    @property
    def adapter_weights_key(self) -> Hashable:
        """Changes when the weights of its adapter change."""
        ...

    def iterate_model_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The language model's weights by their names in a checkpoint, tied ones once, one whole tensor at a time.

        A tensor is valid until the next one is taken. Collective.
        """
        ...

    def save_adapter(self, folder: Path) -> dict[str, TensorHash]:
        """Write its adapter in PEFT's format, on every rank. Collective.

        Returns the hash (`tensor_hash`) of each matrix, by `LAYER.A` and `LAYER.B`; that of B times the
        adapter's scale, both in the base's dtype.
        """
        ...

    def generation_mode(self, gather: Literal["all", "layer"]) -> AbstractContextManager[Policy]:
        """The policy in eval mode, its weights gathered for decoding."""
        ...
