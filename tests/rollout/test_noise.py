"""Gumbel-max sampling: the distribution of its tokens, and what its noise depends on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from plain_sampling import PLAIN
from torch import Tensor

from ippo_cli.rollout import noise as noise_module
from ippo_cli.rollout.noise import GUMBEL_BLOCK, GumbelNoise, UniformNoise, gumbel_noise, row_keys, uniforms
from ippo_cli.rollout.sampling import Sampling, sample_tokens

DRAWS = 100_000


def tokens_of(logits: Tensor, keys: Tensor, sampling: Sampling = PLAIN, *, width: int = 1, **options: Any) -> Tensor:
    """One token for each key, at the first position; `logits [V]`."""
    rows = logits.expand(len(keys), -1)
    given: dict[str, Any] = {"seen": None, "banned": None} | options
    places = torch.arange(len(keys)) * width
    return sample_tokens(rows, sampling, noise=GumbelNoise(keys, width), places=places, **given).tokens


def random_logits(vocabulary: int, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(vocabulary, generator=torch.Generator().manual_seed(vocabulary))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"repetition_penalty": 1.7},
        {"min_new_tokens": 1},
        {"temperature": 1.5, "top_k": 9, "top_p": 0.8, "min_p": 0.05},
    ],
)
def test_tokens_have_filtered_distribution(settings: dict[str, Any]) -> None:
    """Chi-squared of 100 000 tokens against the enumerated distribution."""
    logits, sampling = random_logits(12), replace(PLAIN, **settings)
    options = {
        "seen": (torch.arange(12) < 4).expand(DRAWS, -1) if sampling.repetition_penalty != 1 else None,
        "banned": (torch.arange(12) == 11).expand(DRAWS, -1) if sampling.min_new_tokens else None,
    }
    found = tokens_of(logits, row_keys(1, "chi", torch.arange(DRAWS)), sampling, **options)
    every = torch.arange(12)
    whole = sample_tokens(  # log-probabilities of all tokens: a uniform number for the middle of each
        logits.expand(12, -1),
        sampling,
        noise=_Fixed(every),  # type: ignore[arg-type]
        places=every,
        **{name: None if value is None else value[:12] for name, value in options.items()},
    )
    expected = whole.behavior_logprobs.exp().numpy()
    counts = np.bincount(found.numpy(), minlength=12)
    assert (counts[expected == 0] == 0).all()
    possible = expected > 0
    means = DRAWS * expected[possible] / expected.sum()
    statistic, degrees = ((counts[possible] - means) ** 2 / means).sum(), possible.sum() - 1
    limit = degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3  # Wilson and Hilferty, p = .001
    assert statistic < limit


class _Fixed:
    """Chooses given tokens."""

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens

    def choose(self, logits: Tensor, places: Tensor) -> Tensor:
        return self._tokens


def largest_distance(numbers: Tensor) -> float:
    """Kolmogorov's statistic, sqrt(n) times the largest distance between both distribution functions."""
    found = torch.exp(-torch.exp(-numbers.double().sort().values))
    steps = torch.arange(len(found) + 1, dtype=torch.float64) / len(found)
    return float(len(found) ** 0.5 * torch.maximum(found - steps[:-1], steps[1:] - found).max())


@pytest.mark.parametrize("vocabulary", [12, GUMBEL_BLOCK, 5 * GUMBEL_BLOCK, 1000])
def test_noise_is_standard_gumbel(vocabulary: int) -> None:
    noise = gumbel_noise(row_keys(2, "gumbel", torch.arange(400)), torch.arange(400) % 7, vocabulary)
    assert largest_distance(noise.flatten()) < 1.95  # Kolmogorov, p = .001
    assert largest_distance(noise.amax(dim=1) - math.log(vocabulary)) < 1.95
    if vocabulary > GUMBEL_BLOCK:  # neighbours in a block, and blocks
        for distance in (1, GUMBEL_BLOCK):
            pairs = torch.stack([noise[:, :-distance].flatten(), noise[:, distance:].flatten()])
            assert abs(torch.corrcoef(pairs)[0, 1]) < 0.04


@pytest.mark.parametrize("vocabulary", [30, 1000, 4096, 50_001])
@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0])
def test_blocks_give_argmax_over_whole_vocabulary(vocabulary: int, scale: float, monkeypatch: Any) -> None:
    keys = row_keys(3, "blocks", torch.arange(20))
    logits = scale * torch.randn(20, vocabulary, generator=torch.Generator().manual_seed(0))
    logits[3, : vocabulary // 2] = -math.inf
    logits[4, 1:] = -math.inf
    places = torch.arange(20) * 8 + torch.arange(20) % 8
    expected = (logits + gumbel_noise(keys, places % 8, vocabulary)).argmax(dim=1)
    assert expected[4] == 0
    for table_words in (0, 1 << 30):  # by blocks, from a table
        monkeypatch.setattr(noise_module, "TABLE_WORDS", table_words)
        noise = GumbelNoise(keys, 8)
        assert torch.equal(noise.choose(logits, places), expected)
        assert torch.equal(noise.choose(logits[5:9], places[5:9]), expected[5:9])


def test_noise_of_token_independent_of_vocabulary_and_other_rows() -> None:
    keys = row_keys(4, "words", torch.arange(6))
    wide = gumbel_noise(keys, torch.arange(6), 1000)
    assert torch.equal(gumbel_noise(keys[2:4], torch.tensor([2, 3]), 77), wide[2:4, :77])
    assert not torch.equal(gumbel_noise(keys, torch.arange(6) + 1, 1000), wide)


def test_noise_stable_across_versions() -> None:
    keys = row_keys(0, "train/solver", torch.tensor([0, 12345]))
    assert keys.tolist() == KEYS
    noise = gumbel_noise(keys, torch.tensor([0, 9]), 40)
    torch.testing.assert_close(noise[:, [0, 1, 39]], torch.tensor(NOISE), atol=1e-6, rtol=0)


KEYS = [1589224967631214686, -277086056638872265]
NOISE = [[-0.7214874, 1.5955374, 3.9488244], [-0.1868954, 0.2617291, 0.2874284]]


def test_short_philox_matches_published_values() -> None:
    """Known answers of Random123 (kat_vectors, philox4x32 with ten rounds)."""
    philox = noise_module._short_philox
    zeros = philox(tuple(np.zeros(1, dtype=np.int64) for _ in range(4)), np.zeros(1, dtype=np.int64))
    assert [int(word[0]) for word in zeros] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = tuple(np.full(1, 0xFFFFFFFF, dtype=np.int64) for _ in range(4))
    found = philox(ones, np.full(1, -1, dtype=np.int64))
    assert [int(word[0]) for word in found] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_filter_leaves_other_tokens_alone() -> None:
    """A token that was chosen and stays allowed is chosen again: filters do not move noise."""
    logits, keys = random_logits(500), row_keys(5, "filters", torch.arange(2000))
    free = tokens_of(logits, keys)
    filtered = tokens_of(logits, keys, replace(PLAIN, top_k=50))
    kept = torch.isin(free, logits.topk(50).indices)
    assert kept.any()
    assert not kept.all()
    assert torch.equal(filtered[kept], free[kept])


def test_rounding_changes_few_tokens() -> None:
    """Against inverse-CDF sampling, which changes a token wherever a boundary has moved over its number."""
    logits = random_logits(20_000, scale=1.0)
    rounded = logits.bfloat16().float()
    keys, count = row_keys(6, "rounding", torch.arange(3000)), 3000
    gumbel = (tokens_of(logits, keys) != tokens_of(rounded, keys)).float().mean()
    numbers = UniformNoise(uniforms(6, "rounding", torch.arange(count), 1))
    cdf = [numbers.choose(one.expand(count, -1), torch.arange(count)) for one in (logits, rounded)]
    assert gumbel < 0.01
    assert (cdf[0] != cdf[1]).float().mean() > 5 * gumbel


def test_not_a_number_is_chosen_without_an_error() -> None:
    """The loop reports logits that are not numbers by their log-probabilities."""
    logits = torch.full((3, 9000), math.nan)
    chosen = GumbelNoise(row_keys(0, "nan", torch.arange(3)), 1).choose(logits, torch.arange(3))
    assert chosen.shape == (3,)
    assert ((chosen >= 0) & (chosen < 9000)).all()


@pytest.mark.parametrize("tried", [2, noise_module.TRIED_BLOCKS])
def test_best_blocks_give_the_argmax_or_say_that_it_is_unknown(tried: int, monkeypatch: Any) -> None:
    """Fewer blocks than may contain the token leave some tokens unknown, and never a wrong one."""
    monkeypatch.setattr(noise_module, "TRIED_BLOCKS", tried)
    keys = row_keys(3, "x", torch.arange(200))
    logits = random_logits(200 * 20_000).reshape(200, 20_000)
    noise, places = GumbelNoise(keys, 1), torch.arange(200)
    tokens, known = noise.try_choose(logits, places)
    assert known is not None
    expected = noise.choose(logits, places)
    assert torch.equal(tokens[known], expected[known])
    assert known.all() == (tried > 2)
    assert known.any()
    assert noise.try_choose(logits[:, : tried * GUMBEL_BLOCK], places)[1] is None
