"""What inference engines read of a policy: its weights as whole tensors, and keys that change with them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ippo_cli.engine.zero import Engine
from ippo_cli.models.actor import Policy
from ippo_cli.models.load import checkpoint_tensors
from ippo_cli.rollout.decode import stop_ids
from ippo_cli.rollout.tensor_hash import TensorHash, tensor_hash

RANK_MULTIPLE = 8
"""Engines pad the ranks of adapters to a multiple of this."""


class SampledWeights:
    """A policy's part of `GenerationPolicy` for inference engines."""

    tokenizer: PreTrainedTokenizerBase

    @property
    def sampled_policy(self) -> tuple[Policy, Engine[Any] | None]:
        """The policy, and the engine that may shard its weights."""
        raise NotImplementedError

    @property
    def language_model(self) -> PreTrainedModel:
        """The language model; its weights may be sharded. An adapter's is its base."""
        return self.sampled_policy[0].lm

    @property
    def model_key(self) -> Hashable:
        return id(self.language_model)

    @property
    def dtype(self) -> torch.dtype:
        return self.language_model.dtype

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return stop_ids(self.language_model, self.tokenizer)

    @property
    def adapter_name(self) -> str | None:
        return self.sampled_policy[0].adapter_name

    @property
    def adapter_rank(self) -> int:
        return self.sampled_policy[0].adapter_rank

    @property
    def model_weights_key(self) -> Hashable:
        return "base" if self.sampled_policy[0].is_on_base else self._weights_key

    @property
    def adapter_weights_key(self) -> Hashable:
        return self._weights_key

    @property
    def _weights_key(self) -> Hashable:
        policy, engine = self.sampled_policy
        return policy.copies, None if engine is None else engine.updates

    def iterate_model_weights(self) -> Iterator[tuple[str, Tensor]]:
        policy, engine = self.sampled_policy
        if policy.is_on_base or engine is None:
            for name, parameter in policy.named_model_parameters():
                yield from checkpoint_tensors(policy.lm, name, parameter.detach())
            return
        with engine.whole_layers():
            for name, parameter in policy.named_model_parameters():
                with engine.gather_parameter(parameter):
                    yield from checkpoint_tensors(policy.lm, name, parameter.detach())

    @torch.no_grad()
    def save_adapter(self, folder: Path) -> dict[str, TensorHash]:
        policy, engine = self.sampled_policy
        adapter: Any = policy.trained_module
        weights: dict[str, Tensor] = {}
        for name, parameter in adapter.named_parameters():
            with _gather_parameter(parameter, engine):
                weights[name] = parameter.detach().to("cpu", copy=True)
        adapter.save(folder, weights)
        dtype, hashes = policy.lm.dtype, {}
        for name, weight in weights.items():
            path, part, _ = name.rsplit(".", 2)
            layer = path.replace("/", ".")
            weight = weight.to(dtype)
            if part == "B":
                scaled = weight * adapter.scales[layer]
                weight = pad(scaled, (0, -scaled.shape[1] % RANK_MULTIPLE))
            hashes[f"{layer}.{part}"] = tensor_hash(weight)
        return hashes


def _gather_parameter(parameter: nn.Parameter, engine: Engine[Any] | None) -> AbstractContextManager[None]:
    return nullcontext() if engine is None else engine.gather_parameter(parameter)
