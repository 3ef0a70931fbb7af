"""Tiny random models, a character tokenizer, ragged prompts, and teacher-forced log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from string import ascii_lowercase
from typing import Any

import pytest
import torch
from plain_sampling import PLAIN
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from ippo_cli.models.tiny import character_tokenizer
from ippo_cli.rollout.decode import NO_HOOKS, decode
from ippo_cli.rollout.decode_state import DecodeHooks, DecodeRows
from ippo_cli.rollout.noise import GumbelNoise, row_keys
from ippo_cli.types import Completion

LENGTHS = [9, 2, 5, 7, 9, 1, 4, 4, 8, 3, 6, 9]


def random_model(config: Any, *, scale: float = 6.0) -> PreTrainedModel:
    """A model with random weights large enough for outputs to depend on the attended tokens."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(scale)
    return model


@dataclass
class Decoded:
    """Right-padded completions."""

    completions: list[Completion]

    def __post_init__(self) -> None:
        lengths = torch.tensor([len(completion.ids) for completion in self.completions], dtype=torch.long)
        self.response_mask = torch.arange(max(1, *lengths.tolist(), 1)) < lengths[:, None]
        self.response_ids = self._padded("ids", torch.long)
        self.logprobs = self._padded("logprobs", torch.float32)
        self.behavior_logprobs = self._padded("behavior_logprobs", torch.float32)
        self.finished = torch.tensor([completion.finished for completion in self.completions], dtype=torch.bool)
        self.texts = [completion.text for completion in self.completions]

    def _padded(self, name: str, dtype: torch.dtype) -> Tensor:
        rows = torch.zeros(self.response_mask.shape, dtype=dtype)
        for row, completion in enumerate(self.completions):
            part = getattr(completion, name)
            assert part.dtype == dtype
            assert part.device.type == "cpu"
            rows[row, : len(part)] = part
        return rows


@dataclass
class Asked:
    """Twelve prompts of different lengths, with helpers for decoding and scoring."""

    ids: Tensor
    mask: Tensor
    tokenizer: PreTrainedTokenizerFast

    def decoded(
        self,
        model: PreTrainedModel,
        *,
        batch_size: int = 5,
        context_limit: int = 64,
        rows: slice = slice(None),
        hooks: DecodeHooks = NO_HOOKS,
        **sampling: Any,
    ) -> Decoded:
        settings = replace(PLAIN, **sampling)
        index = torch.arange(len(self.ids))[rows]
        noise = None if settings.greedy else GumbelNoise(row_keys(4, "test", index), settings.max_new_tokens)
        prompts = [ids[mask].tolist() for ids, mask in zip(self.ids[rows], self.mask[rows], strict=True)]
        completions = decode(
            model,
            self.tokenizer,
            DecodeRows(prompts=prompts, noise=noise),
            settings,
            batch_size=batch_size,
            context_limit=context_limit,
            hooks=hooks,
        )
        return Decoded(completions)

    @torch.no_grad()
    def logits(self, model: PreTrainedModel, decoded: Decoded, row: int) -> Tensor:
        """Logits of one row's response positions from one unpadded forward without a cache."""
        prompt = self.ids[row][self.mask[row]]
        whole = torch.cat([prompt, decoded.response_ids[row][decoded.response_mask[row]]])
        return model(input_ids=whole[None], use_cache=False).logits[0, len(prompt) - 1 : -1].float()

    def teacher_forced(self, model: PreTrainedModel, decoded: Decoded, temperature: float = 1.0) -> Tensor:
        """Log-probabilities of the response tokens, 0 off the mask."""
        found = torch.zeros(decoded.response_ids.shape)
        for row, mask in enumerate(decoded.response_mask):
            logprobs = torch.log_softmax(self.logits(model, decoded, row) / temperature, dim=-1)
            found[row, mask] = logprobs.gather(1, decoded.response_ids[row][mask][:, None]).squeeze(1)
        return found


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return character_tokenizer(ascii_lowercase)


@pytest.fixture
def asked(tokenizer: PreTrainedTokenizerFast) -> Asked:
    torch.manual_seed(1)
    width = max(LENGTHS) + 2
    mask = torch.arange(width) >= width - torch.tensor(LENGTHS)[:, None]
    ids = torch.randint(3, len(tokenizer), mask.shape).where(mask, torch.tensor(0))
    return Asked(ids=ids, mask=mask, tokenizer=tokenizer)


@pytest.fixture
def llama(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    return random_model(llama_config(len(tokenizer)))


def llama_config(vocabulary: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )


@pytest.fixture(scope="session")
def random_weights() -> Callable[..., PreTrainedModel]:
    return random_model
