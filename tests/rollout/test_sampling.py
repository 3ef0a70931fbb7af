"""Uniform numbers per row, and tokens sampled with them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from plain_sampling import PLAIN
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedTokenizerFast,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ippo_cli.rollout.decode_state import DecodeRows, DecodeState
from ippo_cli.rollout.noise import UniformNoise, uniforms
from ippo_cli.rollout.sampling import SampledTokens, sample_tokens

LAST = 1 - 2**-53  # the largest number below 1
FIRST = torch.tensor([0])  # the first token of the first row


def drawn(logits: Tensor, numbers: list[float] | Tensor, **settings: Any) -> SampledTokens:
    """One row of logits, one sample for each number."""
    numbers = torch.as_tensor(numbers, dtype=torch.float64)
    rows = logits.expand(len(numbers), -1)
    return sample_tokens(
        rows,
        replace(PLAIN, **settings),
        noise=UniformNoise(numbers[:, None]),
        places=torch.arange(len(numbers)),
        seen=None,
        banned=None,
    )


def test_uniforms_depend_on_seed_stream_and_index() -> None:
    numbers = uniforms(7, "train/a", torch.tensor([5, 900, 2]), 16)
    assert numbers.dtype == torch.float64
    assert torch.equal(uniforms(7, "train/a", torch.tensor([2, 5]), 4), numbers[[2, 0], :4])
    for other in (uniforms(8, "train/a", torch.tensor([5]), 16), uniforms(7, "train/b", torch.tensor([5]), 16)):
        assert not (other == numbers[:1]).any()
    assert not (numbers[0] == numbers[1]).any()


def test_uniforms_stable_across_versions() -> None:
    found = uniforms(0, "train/solver", torch.tensor([0, 12345]), 2)
    assert found.tolist() == [[0.08615205812369842, 0.7135174500115636], [0.9849791347713346, 0.8118923288189318]]


@pytest.mark.parametrize(("rows", "count"), [(3, 1), (5, 10), (40, 1000), (0, 4), (2, 0)])
def test_uniforms_match_numpy_philox(rows: int, count: int) -> None:
    index = torch.randint(0, 2**62, (rows,), generator=torch.Generator().manual_seed(count))
    word = int.from_bytes(hashlib.blake2b(b"7/train/a", digest_size=8).digest(), "little")
    found = uniforms(7, "train/a", index, count)
    assert found.shape == (rows, count)
    for row, number in enumerate(index.tolist()):
        generator = np.random.Generator(np.random.Philox(key=np.array([word, number], dtype=np.uint64)))
        assert found[row].tolist() == generator.random(count).tolist()


def test_uniforms_are_uniform() -> None:
    numbers = uniforms(1, "s", torch.arange(200), 100)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    shares = torch.histc(numbers.float(), bins=10, min=0, max=1) / numbers.numel()
    torch.testing.assert_close(shares, torch.full((10,), 0.1), atol=0.01, rtol=0)
    neighbours = torch.corrcoef(torch.stack([numbers[:-1].flatten(), numbers[1:].flatten()]))
    assert abs(neighbours[0, 1]) < 0.02


def test_tokens_in_vocabulary_order() -> None:
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    found = drawn(logits, [0.0, 0.09, 0.11, 0.29, 0.31, 0.59, 0.61, LAST])
    assert found.tokens.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    torch.testing.assert_close(found.logprobs, logits[0][found.tokens])


def test_impossible_token_never_sampled() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.25, 0.0, 0.5, 0.25, 0.0]]).log()
    assert drawn(logits, [0.0, 0.2499, 0.2501, 0.7499, 0.7501, LAST]).tokens.tolist() == [2, 2, 4, 4, 5, 5]
    wide = torch.full((1, 50_000), -math.inf)
    wide[0, 100:40_000] = torch.randn(39_900, generator=torch.Generator().manual_seed(0))
    found = drawn(wide, [0.0, 1e-12, 0.5, 1 - 1e-9, LAST])
    assert found.tokens.min() >= 100
    assert found.tokens.max() < 40_000


def flat_tail(likely: float, vocabulary: int = 150_001) -> tuple[Tensor, Tensor]:
    """Log-probabilities `[1, V]` of one likely token and a tail of equal ones, and their cumulative sum in float64."""
    probabilities = torch.full((1, vocabulary), (1 - likely) / (vocabulary - 1), dtype=torch.float64)
    probabilities[0, 0] = likely
    return probabilities.log().float(), probabilities[0].cumsum(0)


@pytest.mark.parametrize("likely", [0.5, 0.999])
def test_flat_tail_sampled_precisely(likely: float) -> None:
    logits, cumulated = flat_tail(likely)
    # Fifty adjacent tokens: at .999 their midpoints are closer together than float32 numbers near 1.
    middles = cumulated[140_000:140_050] - 0.5 * (1 - likely) / 150_000
    found = drawn(logits, middles).tokens
    assert (found - torch.arange(140_000, 140_050)).abs().max() <= 20  # of 150 000: rounding of the float32 logits
    assert found.diff().tolist() == [1] * 49


def test_top_p_of_flat_tail_precise() -> None:
    logits, _ = flat_tail(0.5)
    kept = drawn(logits, [LAST], top_p=0.9).tokens.item()
    # Equal tokens are kept in vocabulary order: 0.5 + k * 0.5 / 150 000 first reaches .9 at k = 120 000.
    assert abs(kept - 120_000) <= 2


@pytest.mark.parametrize("vocabulary", [512, 513, 5_000])
def test_vocabulary_of_several_blocks(vocabulary: int) -> None:
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(4))
    cumulated = torch.softmax(logits[0].double(), dim=0).cumsum(0)
    numbers = torch.rand(3_000, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    exact = torch.searchsorted(cumulated, numbers, right=True)
    assert (drawn(logits, numbers).tokens == exact).float().mean() > 0.999


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7},
        {"top_k": 3},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"temperature": 1.5, "top_k": 9, "top_p": 0.8, "min_p": 0.1},
        {"top_k": 100, "top_p": 0.9},
    ],
)
def test_frequencies_match_filtered_probabilities(settings: dict[str, Any]) -> None:
    logits = 2 * torch.randn(1, 12, generator=torch.Generator().manual_seed(3))
    count = 20_000
    found = drawn(logits, (torch.arange(count, dtype=torch.float64) + 0.5) / count, **settings)
    warpers = {
        "temperature": TemperatureLogitsWarper,
        "top_k": TopKLogitsWarper,
        "top_p": TopPLogitsWarper,
        "min_p": MinPLogitsWarper,
    }
    steps = LogitsProcessorList([warper(settings[name]) for name, warper in warpers.items() if name in settings])
    expected = torch.log_softmax(steps(None, logits), dim=-1)[0]
    shares = torch.bincount(found.tokens, minlength=12) / count
    torch.testing.assert_close(shares, expected.exp(), atol=1.01 / count, rtol=0)
    torch.testing.assert_close(found.behavior_logprobs, expected[found.tokens], atol=1e-5, rtol=0)
    tempered = torch.log_softmax(logits / settings.get("temperature", 1.0), dim=-1)[0]
    torch.testing.assert_close(found.logprobs, tempered[found.tokens], atol=1e-5, rtol=0)


def test_repetition_penalty_only_in_behavior_logprobs() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5, 1.0]])
    seen = torch.tensor([[True, True, False, False]])
    settings = replace(PLAIN, repetition_penalty=1.5, temperature=0.8)
    penalised = RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([[0, 1]]), logits) / 0.8
    for number in (0.05, 0.5, 0.95):
        noise = UniformNoise(torch.tensor([[number]]))
        found = sample_tokens(logits, settings, noise=noise, places=FIRST, seen=seen, banned=None)
        token = found.tokens
        torch.testing.assert_close(found.behavior_logprobs, torch.log_softmax(penalised, -1)[0, token])
        torch.testing.assert_close(found.logprobs, torch.log_softmax(logits / 0.8, -1)[0, token])


def test_banned_token_only_in_behavior_logprobs() -> None:
    logits = torch.tensor([[3.0, 0.0, 0.0]])
    banned = torch.tensor([[True, False, False]])
    settings = replace(PLAIN, min_new_tokens=1)
    noise = UniformNoise(torch.tensor([[0.1]]))
    found = sample_tokens(logits, settings, noise=noise, places=FIRST, seen=None, banned=banned)
    assert found.tokens.tolist() == [1]
    torch.testing.assert_close(found.behavior_logprobs, torch.tensor([0.5]).log())
    torch.testing.assert_close(found.logprobs, torch.log_softmax(logits, -1)[:, 1])


def test_logprobs_shared_without_filters() -> None:
    plain = drawn(torch.zeros(1, 4), [0.3])
    assert plain.behavior_logprobs is plain.logprobs
    for settings in ({"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}, {"repetition_penalty": 1.1}, {"min_new_tokens": 1}):
        assert drawn(torch.zeros(1, 4), [0.3], **settings).behavior_logprobs is not plain.logprobs
        assert replace(PLAIN, **settings).is_filtered
    assert not PLAIN.is_filtered


def test_greedy() -> None:
    logits = torch.tensor([[2.0, 1.5, -1.0]])
    for temperature, divisor in ((0.0, 1.0), (0.5, 0.5)):
        settings = replace(PLAIN, greedy=True, temperature=temperature)
        found = sample_tokens(logits, settings, noise=None, places=FIRST, seen=None, banned=None)
        assert found.tokens.tolist() == [0]
        torch.testing.assert_close(found.logprobs, torch.log_softmax(logits / divisor, -1)[:, 0])
    seen = torch.tensor([[True, False, False]])
    settings = replace(PLAIN, greedy=True, repetition_penalty=2.0)
    assert sample_tokens(logits, settings, noise=None, places=FIRST, seen=seen, banned=None).tokens.tolist() == [1]


def test_uniforms_used_in_float64() -> None:
    """In float32 this number would round to 1 and select the token with probability 2 ** -30 incorrectly."""
    numbers = torch.tensor([[1 - 2.0**-29]], dtype=torch.float64)
    state = DecodeState(
        DecodeRows(prompts=[[0]], noise=UniformNoise(numbers)),
        np.array([1]),
        replace(PLAIN, max_new_tokens=1),
        (),
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0, "b": 1}))),
        torch.device("cpu"),
    )
    state.record(torch.tensor([[0.0, -30 * math.log(2)]]), np.array([0]))
    assert state.tokens.tolist() == [0]
