"""The protocol of inference engines: requests and completions as token ids, and loading of weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ippo_cli.rollout.sampling import Sampling
from ippo_cli.rollout.tensor_hash import TensorHash


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """What an engine needs to create a model; weights are loaded later."""

    name: str  # of the agents that sample from it, for messages and file names
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    dtype: torch.dtype
    max_length: int  # tokens of prompt and response together
    usual_length: int  # tokens of one prompt and its response, at most
    max_rows: int  # requests decoded at once
    max_adapters: int = 0  # 0: no LoRA adapters
    max_adapter_rank: int = 0
    has_noise: bool = False  # whether requests have the noise of their tokens


class TokenNoiseKey(NamedTuple):
    """The Gumbel noise of a request's tokens (`rollout/noise.py`)."""

    key: int  # of the row
    position: int  # of the first token that the engine samples


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One prompt to complete."""

    key: int  # unique among the requests in flight
    prompt: Sequence[int]
    sampling: Sampling
    stop_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int
    adapter: str | None = None
    noise: TokenNoiseKey | None = None  # draws the trained model's tokens where the engine has its distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOutput:
    """A completed request."""

    key: int
    ids: list[int]  # the stop token included
    logprobs: list[float] | None  # of the distribution that the tokens were sampled from; None: it gives none
    versions: list[int]  # of the weights, by token


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResources:
    """Where the processes that a generator starts write their output, and on which devices they run."""

    log_folder: Path | None = None  # None: the temporary folder
    devices: tuple[int, ...] | None = None  # CUDA devices of servers, as this process numbers them; None: the ranks'


class InferenceEngine(Protocol):
    """An engine with one model, or with adapters on one base."""

    def start(self) -> None:
        """Start the engine. Collective where engines run in the ranks, or ranks share them. Raises `EngineError`."""
        ...

    def reuse(self, model: EngineModel) -> None:
        """Serve another model of the same shape, or its successor in the same place; weights and adapters follow."""
        ...

    def submit(self, request: EngineRequest) -> None:
        """Accept a request; it is decoded with others in the following steps."""
        ...

    def step(self, *, waits: bool = True) -> list[EngineOutput]:
        """Advance the requests, and return those that have completed. Raises `EngineError`.

        `waits`: whether to wait for the first completion of a server for a short time.
        """
        ...

    def abort(self) -> None:
        """Forget all requests in flight."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> list[str]:
        """Replace the model's weights; tensors may be released after they are yielded. Clears the prefix cache.

        Returns the tensors for which the model has no place.
        """
        ...

    def verify_weights(self, hashes: Mapping[str, TensorHash]) -> list[str]:
        """The names of tensors with another hash in the engine than in `hashes`."""
        ...

    def load_adapter(self, name: str, folder: Path, version: int) -> None:
        """Replace an adapter by the one in a folder of PEFT's format. Clears the prefix cache."""
        ...

    def verify_adapter(self, name: str, hashes: Mapping[str, TensorHash]) -> list[str]:
        """The matrices of an adapter with another hash in the engine; keys are `LAYER.A` and `LAYER.B`."""
        ...

    def sleep(self) -> bool:
        """Free device memory until the next load of weights; True if the weights are lost."""
        ...

    def close(self) -> None:
        """End the engine and what it started."""
        ...
