"""Token sampling: temperature, filters, and inverse-CDF sampling from one uniform number per token."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 512
"""Block size, in tokens, of the search over a large vocabulary."""
LARGEST_UNIFORM = 1 - 2**-53
PHILOX_FACTORS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
PHILOX_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
PHILOX_BLOCKS = 1 << 13
"""Blocks of four numbers that are generated at once: their words stay in the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling settings; names and meanings as in the config, except `greedy`."""

    temperature: float
    top_p: float  # 1 = off
    top_k: int  # 0 = off
    min_p: float  # 0 = off
    repetition_penalty: float  # 1 = off
    max_new_tokens: int
    min_new_tokens: int
    stop_strings: tuple[str, ...]
    greedy: bool

    def __post_init__(self) -> None:
        assert self.max_new_tokens > 0
        assert self.temperature > 0 or (self.greedy and self.temperature == 0)
        assert 0 < self.top_p <= 1
        assert 0 <= self.min_p <= 1
        assert self.top_k >= 0
        assert self.repetition_penalty > 0

    @property
    def divisor(self) -> float:
        """The divisor of logits: the temperature, or 1 where greedy decoding has temperature 0."""
        return self.temperature or 1.0

    @property
    def is_filtered(self) -> bool:
        """Whether tokens are sampled from a filtered distribution."""
        changes_logits = self.repetition_penalty != 1 or self.min_new_tokens > 0
        return changes_logits or self.top_p < 1 or self.top_k > 0 or self.min_p > 0


def uniforms(seed: int, stream: str, index: Tensor, count: int) -> Tensor:
    """Uniform numbers in [0, 1) per row, `[B, count]` float64: a function of (seed, stream, row index) alone.

    Philox keyed by a hash of the seed and the stream's name, and by the row's index. A longer `count` extends the same
    sequence, so a row does not depend on the batch, the rank or the response limit.
    """
    digest = hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest()
    keys, blocks = index.cpu().numpy().astype(np.uint64), -(-count // 4)
    numbers = np.empty((len(keys), 4 * blocks))
    together = max(1, PHILOX_BLOCKS // max(1, blocks))
    for row in range(0, len(keys), together):
        words = _philox(int.from_bytes(digest, "little"), keys[row : row + together], blocks)
        numbers[row : row + together] = (words >> np.uint64(11)) * 2.0**-53
    return torch.from_numpy(numbers[:, :count])


def _philox(key: int, keys: np.ndarray, blocks: int) -> np.ndarray:
    """The first `4 * blocks` numbers of `numpy.random.Philox(key=[key, k])` for each k, `[len(keys), 4 * blocks]`.

    Philox4x64 of ten rounds (Salmon et al. 2011), vectorised over rows: creating a generator object per row costs more
    than the few numbers that a short response needs.
    """
    first = np.arange(1, blocks + 1, dtype=np.uint64)[None]
    second = third = fourth = np.zeros((1, 1), dtype=np.uint64)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64
        for number in range(10):
            low_key = np.uint64((key + number * PHILOX_STEPS[0]) % 2**64)
            high_key = (keys + np.uint64(number * PHILOX_STEPS[1] % 2**64))[:, None]
            product_1, product_2 = _multiply_64bit(PHILOX_FACTORS[0], first), _multiply_64bit(PHILOX_FACTORS[1], third)
            first, second, third, fourth = (
                product_2[0] ^ second ^ low_key,
                product_2[1],
                product_1[0] ^ fourth ^ high_key,
                product_1[1],
            )
    words = np.broadcast_arrays(first, second, third, fourth)
    return np.stack(words, axis=-1).reshape(len(keys), 4 * blocks)


def _multiply_64bit(factor: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The upper and the lower 64 bits of a 64-bit factor times 64-bit numbers."""
    half, low = np.uint64(32), np.uint64(2**32 - 1)
    factor_high, factor_low = np.uint64(factor >> 32), np.uint64(factor % 2**32)
    high_part, low_part = numbers >> half, numbers & low
    middle = factor_high * low_part + (factor_low * low_part >> half)
    carry = (middle & low) + factor_low * high_part
    return factor_high * high_part + (middle >> half) + (carry >> half), np.uint64(factor) * numbers


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token for each row, all `[n]`."""

    tokens: Tensor  # int64
    logprobs: Tensor  # float32: tempered, before any filter
    behavior_logprobs: Tensor  # float32, of the filtered distribution; the same tensor without a filter


def sample_tokens(
    logits: Tensor, sampling: Sampling, *, uniform: Tensor | None, seen: Tensor | None, banned: Tensor | None
) -> SampledTokens:
    """Sample the next token of every row of `logits [n, V]`.

    `uniform [n]` may be `None` only for greedy decoding. `seen [n, V]` marks the tokens with a repetition penalty,
    `banned [n, V]` those that are not allowed yet.
    """
    logits = logits.float()
    logprobs = tempered_logprobs(logits, sampling)
    allowed = _filter_logits(logits, sampling, seen, banned) if sampling.is_filtered else None
    drawn_from = logprobs if allowed is None else torch.log_softmax(allowed, dim=-1)
    if sampling.greedy:
        # Over logits: rounding in the log-softmax could create ties.
        tokens = (logits if allowed is None else allowed).argmax(dim=-1, keepdim=True)
    else:
        assert uniform is not None
        tokens = _sample_inverse_cdf(drawn_from, uniform)
    chosen = logprobs.gather(1, tokens).squeeze(1)
    behavior = chosen if allowed is None else drawn_from.gather(1, tokens).squeeze(1)
    return SampledTokens(tokens.squeeze(1), chosen, behavior)


def tempered_logprobs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities of the next token before any filter, `[n, V]`."""
    return torch.log_softmax(logits.float() / sampling.divisor, dim=-1)


def behavior_logprobs(logits: Tensor, sampling: Sampling, *, banned: Tensor | None) -> Tensor:
    """Log-probabilities from which the next token is sampled, without a repetition penalty, `[n, V]`."""
    if not sampling.is_filtered:
        return tempered_logprobs(logits, sampling)
    return torch.log_softmax(_filter_logits(logits.float(), sampling, None, banned), dim=-1)


def _sample_inverse_cdf(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """The token, in vocabulary order, at each row's number in [0, 1) of the cumulative distribution; `[n, 1]`.

    The cumulative sum is in float64: float32 would lose the flat tail of a large vocabulary. A large vocabulary is
    searched in two steps, first for a block of tokens, so that only block sums and one block are cumulated.
    """
    probabilities = logprobs.exp()
    vocabulary, point = probabilities.shape[1], uniform[:, None].double()
    if vocabulary <= BLOCK:
        tokens, _ = _search_cumulative(probabilities, point)
    else:
        blocks = pad(probabilities, (0, -vocabulary % BLOCK)).unflatten(1, (-1, BLOCK))
        block, inside = _search_cumulative(blocks.sum(dim=2), point)
        rows = torch.arange(len(blocks), device=blocks.device)
        token, _ = _search_cumulative(blocks[rows, block[:, 0]], inside)
        tokens = (block * BLOCK + token).clamp_(max=vocabulary - 1)
    # A parallel cumulative sum may be non-monotone in the last bit, so an impossible token can still be selected.
    impossible = probabilities.gather(1, tokens) == 0
    return torch.where(impossible, logprobs.argmax(dim=-1, keepdim=True), tokens)


def _search_cumulative(weights: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """The column of `weights [n, m]` at a point in [0, 1) of their sum, and the position within it, as `[n, 1]`."""
    cumulated = weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulated[:, -1:]
    # Below the total after rounding, so that the search ends at a column with positive weight.
    target = torch.minimum(point * total, total.nextafter(torch.zeros_like(total)))
    column = torch.searchsorted(cumulated, target, right=True).clamp_(max=weights.shape[1] - 1)
    weight = weights.gather(1, column).double()
    start = cumulated.gather(1, column) - weight
    return column, ((target - start) / weight).clamp(min=0.0, max=LARGEST_UNIFORM)


def _filter_logits(logits: Tensor, sampling: Sampling, seen: Tensor | None, banned: Tensor | None) -> Tensor:
    """Tempered logits after penalty, ban and filters: -inf for tokens that cannot be sampled."""
    if seen is not None:
        penalty = sampling.repetition_penalty
        logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
    if banned is not None:
        logits = logits.masked_fill(banned, -math.inf)
    tempered = logits / sampling.divisor
    if sampling.top_p < 1 or 0 < sampling.top_k < logits.shape[1]:
        tempered = _apply_top_k_top_p(tempered, sampling)
    if sampling.min_p > 0:
        floor = tempered.amax(dim=-1, keepdim=True) + math.log(sampling.min_p)
        tempered = tempered.masked_fill(tempered < floor, -math.inf)
    return tempered


def _apply_top_k_top_p(tempered: Tensor, sampling: Sampling) -> Tensor:
    """Keep the `top_k` likeliest tokens, and of these the fewest with a total probability of `top_p`; at least one."""
    if 0 < sampling.top_k < tempered.shape[1]:
        values, ids = tempered.topk(sampling.top_k, dim=-1)
    else:
        values, ids = tempered.sort(dim=-1, descending=True, stable=True)
    if sampling.top_p < 1:
        weights = (values - values[:, :1]).exp()
        cumulated = weights.cumsum(dim=-1, dtype=torch.float64)
        before = cumulated - weights
        before[:, 0] = 0
        values = values.masked_fill(before >= sampling.top_p * cumulated[:, -1:], -math.inf)
    return torch.full_like(tempered, -math.inf).scatter_(1, ids, values)
