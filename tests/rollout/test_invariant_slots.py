"""Batch-invariant decoding: tokens and log-probabilities of a row are equal to the bit, alone and beside others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from ippo_cli.config.engines import TILE_ROWS
from ippo_cli.config.errors import ConfigError
from ippo_cli.engine.number_formats import has_bf16_instructions
from ippo_cli.rollout.decode import decode
from ippo_cli.rollout.decode_state import DecodeRows
from ippo_cli.rollout.invariant_slots import InvariantSlots, check_invariance, rows_are_invariant, slot_count
from ippo_cli.rollout.noise import GumbelNoise, row_keys
from ippo_cli.rollout.sampling import Sampling
from ippo_cli.types import Completion

PROMPTS = [[3 + (row * 7 + place) % 20 for place in range(2 + row * 5 % 11)] for row in range(TILE_ROWS + 8)]
PROMPTS[24] = PROMPTS[2]  # equal prompts; row 13, of the same length, is between them
LONG_PROMPT = [3 + place % 20 for place in range(250)]
"""The cache becomes wider than its first 256 columns."""


@pytest.fixture
def wide_llama(llama: PreTrainedModel, random_weights: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    """With maps of at least 32768 weights, which a CPU packs."""
    wider = {"hidden_size": 192, "intermediate_size": 224, "max_position_embeddings": 512, "head_dim": 48}
    return random_weights(LlamaConfig.from_dict(llama.config.to_dict() | wider), scale=3.0)


def decode_rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, rows: list[int], **options: Any
) -> list[Completion]:
    noise = GumbelNoise(row_keys(4, "test", torch.tensor(rows)), 12)
    prompts = [LONG_PROMPT if row < 0 else PROMPTS[row] for row in rows]
    sampling = Sampling(max_new_tokens=12)
    rows = DecodeRows(prompts=prompts, noise=noise)
    return decode(model, tokenizer, rows, sampling, context_limit=512, **{"batch_size": 64, **options})


def same_bits(one: Completion, other: Completion) -> bool:
    return torch.equal(one.ids, other.ids) and torch.equal(one.logprobs, other.logprobs)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        pytest.param(torch.bfloat16, marks=pytest.mark.skipif(not has_bf16_instructions(), reason="no bf16")),
    ],
)
def test_rows_do_not_depend_on_their_batch(
    wide_llama: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, dtype: torch.dtype
) -> None:
    model = wide_llama.to(dtype)
    every = list(range(len(PROMPTS)))
    together = decode_rows(model, tokenizer, [*every, -1], batch_invariant=True)
    for rows, size in (([0], 32), ([39], 64), ([2, 24, 5], 32), (every[:33], 64), (every[::-1], 32)):
        apart = decode_rows(model, tokenizer, rows, batch_invariant=True, batch_size=size)
        assert all(same_bits(together[row], found) for row, found in zip(rows, apart, strict=True)), (rows, size)
    assert {len(completion.ids) for completion in together} > {12}, "no row ends early and frees its slot"


def test_samples_are_those_of_other_decoding(wide_llama: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = list(range(len(PROMPTS)))
    invariant = decode_rows(wide_llama, tokenizer, rows, batch_invariant=True)
    usual = decode_rows(wide_llama, tokenizer, rows)
    for one, other in zip(invariant, usual, strict=True):
        assert torch.equal(one.ids, other.ids)
        torch.testing.assert_close(one.logprobs, other.logprobs, rtol=1e-4, atol=1e-5)
    assert not all(map(same_bits, invariant, usual))


@torch.no_grad()
def test_steps_multiply_equal_numbers_of_rows(wide_llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    head = wide_llama.get_output_embeddings()
    monkeypatch.setattr(head, "forward", lambda states: sizes.append(len(states)) or states @ head.weight.T)
    runner = InvariantSlots(wide_llama, TILE_ROWS + 1)
    with runner.session():
        runner.prefill(torch.tensor(PROMPTS[:1]), np.array([len(PROMPTS[0])]), np.zeros(TILE_ROWS + 1, dtype=np.int64))
        assert sizes == [1]
        runner.decode(torch.full((TILE_ROWS + 1,), 5))
    assert sizes == [1, TILE_ROWS, TILE_ROWS]


def test_maps_are_restored(wide_llama: PreTrainedModel) -> None:
    runner = InvariantSlots(wide_llama, 3)
    assert len(runner) == slot_count(3) == TILE_ROWS
    linears = [part for part in wide_llama.modules() if type(part) is nn.Linear]
    with runner.session():
        assert all("forward" in vars(part) for part in linears)
    assert not any("forward" in vars(part) for part in linears)


def test_model_with_dependent_rows_is_refused(wide_llama: PreTrainedModel) -> None:
    """A layer that sums over the batch, as a router with a capacity does."""
    norm = wide_llama.get_submodule("model.norm")
    forward = norm.forward
    assert rows_are_invariant(wide_llama)
    norm.forward = lambda states: forward(states) + 1e-6 * states.sum(dim=0, keepdim=True)
    assert not rows_are_invariant(wide_llama)
    with pytest.raises(ConfigError, match=r"batch_invariant=true is not possible with LlamaForCausalLM"):
        check_invariance(wide_llama)
