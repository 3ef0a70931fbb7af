"""Uniform numbers by row, and tokens drawn from them."""

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

from ippo_cli.rollout.decode_state import DecodeState
from ippo_cli.rollout.sampling import SampledTokens, sample_tokens, uniforms

LAST = 1 - 2**-53  # the largest number below 1


def drawn(logits: Tensor, numbers: list[float] | Tensor, **settings: Any) -> SampledTokens:
    """One row of logits, one draw for each number."""
    numbers = torch.as_tensor(numbers, dtype=torch.float64)
    rows = logits.expand(len(numbers), -1)
    return sample_tokens(rows, replace(PLAIN, **settings), uniform=numbers, seen=None, banned=None)


def test_a_rows_numbers_depend_on_seed_stream_and_index_alone() -> None:
    numbers = uniforms(7, "train/a", torch.tensor([5, 900, 2]), 16)
    assert numbers.dtype == torch.float64
    assert torch.equal(uniforms(7, "train/a", torch.tensor([2, 5]), 4), numbers[[2, 0], :4])
    for other in (uniforms(8, "train/a", torch.tensor([5]), 16), uniforms(7, "train/b", torch.tensor([5]), 16)):
        assert not (other == numbers[:1]).any()
    assert not (numbers[0] == numbers[1]).any()


def test_the_numbers_of_a_run_are_the_same_in_every_version() -> None:
    found = uniforms(0, "train/solver", torch.tensor([0, 12345]), 2)
    assert found.tolist() == [[0.08615205812369842, 0.7135174500115636], [0.9849791347713346, 0.8118923288189318]]


@pytest.mark.parametrize(("rows", "count"), [(3, 1), (5, 10), (40, 1000), (0, 4), (2, 0)])
def test_numbers_are_those_of_the_librarys_generator(rows: int, count: int) -> None:
    index = torch.randint(0, 2**62, (rows,), generator=torch.Generator().manual_seed(count))
    word = int.from_bytes(hashlib.blake2b(b"7/train/a", digest_size=8).digest(), "little")
    found = uniforms(7, "train/a", index, count)
    assert found.shape == (rows, count)
    for row, number in enumerate(index.tolist()):
        generator = np.random.Generator(np.random.Philox(key=np.array([word, number], dtype=np.uint64)))
        assert found[row].tolist() == generator.random(count).tolist()


def test_numbers_are_uniform() -> None:
    numbers = uniforms(1, "s", torch.arange(200), 100)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    shares = torch.histc(numbers.float(), bins=10, min=0, max=1) / numbers.numel()
    torch.testing.assert_close(shares, torch.full((10,), 0.1), atol=0.01, rtol=0)
    neighbours = torch.corrcoef(torch.stack([numbers[:-1].flatten(), numbers[1:].flatten()]))
    assert abs(neighbours[0, 1]) < 0.02


def test_tokens_stand_in_vocabulary_order_along_the_unit_interval() -> None:
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    found = drawn(logits, [0.0, 0.09, 0.11, 0.29, 0.31, 0.59, 0.61, LAST])
    assert found.tokens.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    torch.testing.assert_close(found.logprobs, logits[0][found.tokens])


def test_an_impossible_token_is_never_drawn_not_even_at_the_ends() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.25, 0.0, 0.5, 0.25, 0.0]]).log()
    assert drawn(logits, [0.0, 0.2499, 0.2501, 0.7499, 0.7501, LAST]).tokens.tolist() == [2, 2, 4, 4, 5, 5]
    wide = torch.full((1, 50_000), -math.inf)
    wide[0, 100:40_000] = torch.randn(39_900, generator=torch.Generator().manual_seed(0))
    found = drawn(wide, [0.0, 1e-12, 0.5, 1 - 1e-9, LAST])
    assert found.tokens.min() >= 100
    assert found.tokens.max() < 40_000


def flat_tail(likely: float, vocabulary: int = 150_001) -> tuple[Tensor, Tensor]:
    """Log-probabilities `[1, V]` of one likely token and a tail of equal ones, and their cumulated sum in float64."""
    probabilities = torch.full((1, vocabulary), (1 - likely) / (vocabulary - 1), dtype=torch.float64)
    probabilities[0, 0] = likely
    return probabilities.log().float(), probabilities[0].cumsum(0)


@pytest.mark.parametrize("likely", [0.5, 0.999])
def test_tokens_of_a_flat_tail_are_drawn_where_the_exact_sum_says(likely: float) -> None:
    logits, cumulated = flat_tail(likely)
    # Fifty neighbours: at .999 the middles of their probabilities are closer together than float32 numbers near 1.
    middles = cumulated[140_000:140_050] - 0.5 * (1 - likely) / 150_000
    found = drawn(logits, middles).tokens
    assert (found - torch.arange(140_000, 140_050)).abs().max() <= 20  # of 150 000: the float32 logits' own rounding
    assert found.diff().tolist() == [1] * 49


def test_the_nucleus_of_a_flat_tail_holds_as_many_tokens_as_its_exact_sum_says() -> None:
    logits, _ = flat_tail(0.5)
    kept = drawn(logits, [LAST], top_p=0.9).tokens.item()
    # Equal tokens are kept in vocabulary order: 0.5 + k * 0.5 / 150 000 first reaches .9 at k = 120 000.
    assert abs(kept - 120_000) <= 2


@pytest.mark.parametrize("vocabulary", [512, 513, 5_000])
def test_a_vocabulary_of_several_blocks_is_drawn_as_one(vocabulary: int) -> None:
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
def test_evenly_spread_numbers_give_every_token_its_filtered_probability(settings: dict[str, Any]) -> None:
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


def test_the_repetition_penalty_counts_in_the_behavior_alone() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5, 1.0]])
    seen = torch.tensor([[True, True, False, False]])
    settings = replace(PLAIN, repetition_penalty=1.5, temperature=0.8)
    penalised = RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([[0, 1]]), logits) / 0.8
    for number in (0.05, 0.5, 0.95):
        found = sample_tokens(logits, settings, uniform=torch.tensor([number]), seen=seen, banned=None)
        token = found.tokens
        torch.testing.assert_close(found.behavior_logprobs, torch.log_softmax(penalised, -1)[0, token])
        torch.testing.assert_close(found.logprobs, torch.log_softmax(logits / 0.8, -1)[0, token])


def test_a_banned_token_is_not_drawn_but_keeps_its_share_in_the_plain_log_probability() -> None:
    logits = torch.tensor([[3.0, 0.0, 0.0]])
    banned = torch.tensor([[True, False, False]])
    settings = replace(PLAIN, min_new_tokens=1)
    found = sample_tokens(logits, settings, uniform=torch.tensor([0.1]), seen=None, banned=banned)
    assert found.tokens.tolist() == [1]
    torch.testing.assert_close(found.behavior_logprobs, torch.tensor([0.5]).log())
    torch.testing.assert_close(found.logprobs, torch.log_softmax(logits, -1)[:, 1])


def test_without_filters_both_log_probabilities_are_one_tensor() -> None:
    plain = drawn(torch.zeros(1, 4), [0.3])
    assert plain.behavior_logprobs is plain.logprobs
    for settings in ({"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}, {"repetition_penalty": 1.1}, {"min_new_tokens": 1}):
        assert drawn(torch.zeros(1, 4), [0.3], **settings).behavior_logprobs is not plain.logprobs
        assert replace(PLAIN, **settings).filters
    assert not PLAIN.filters


def test_greedy_takes_the_likeliest_penalised_token_and_temperature_zero_means_one() -> None:
    logits = torch.tensor([[2.0, 1.5, -1.0]])
    for temperature, divisor in ((0.0, 1.0), (0.5, 0.5)):
        settings = replace(PLAIN, greedy=True, temperature=temperature)
        found = sample_tokens(logits, settings, uniform=None, seen=None, banned=None)
        assert found.tokens.tolist() == [0]
        torch.testing.assert_close(found.logprobs, torch.log_softmax(logits / divisor, -1)[:, 0])
    seen = torch.tensor([[True, False, False]])
    settings = replace(PLAIN, greedy=True, repetition_penalty=2.0)
    assert sample_tokens(logits, settings, uniform=None, seen=seen, banned=None).tokens.tolist() == [1]


def test_numbers_reach_the_draw_as_exact_as_they_are_made() -> None:
    """In float32 this one is 1, and the token with one part in 2 ** 30 would be drawn for a number outside of it."""
    numbers = torch.tensor([[1 - 2.0**-29]], dtype=torch.float64)
    state = DecodeState(
        [np.array([0])],
        np.array([1]),
        replace(PLAIN, max_new_tokens=1),
        numbers,
        (),
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0, "b": 1}))),
        torch.device("cpu"),
    )
    state.record(torch.tensor([[0.0, -30 * math.log(2)]]), np.array([0]))
    assert state.tokens.tolist() == [0]
