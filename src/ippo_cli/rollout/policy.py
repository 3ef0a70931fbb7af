"""The protocol of policies for generation."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal, Protocol

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ippo_cli.models.actor import MultiAdapterBatch, Policy


class GenerationPolicy(Protocol):
    """A trainable or frozen policy used for generation."""

    name: str
    tokenizer: PreTrainedTokenizerBase

    @property
    def model_config(self) -> PretrainedConfig:
        """The configuration of the language model."""
        ...

    @property
    def shared_base(self) -> MultiAdapterBatch | None:
        """The model that can decode its rows in one batch with those of other agents; None without one."""
        ...

    def generation_mode(self, gather: Literal["all", "layer"]) -> AbstractContextManager[Policy]:
        """The policy in eval mode, its weights gathered for decoding."""
        ...
