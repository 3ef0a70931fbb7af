"""Random numbers that select tokens: a function of seed, stream, row, position and, for Gumbel-max, the token's id.

Gumbel-max (Gumbel 1954; Maddison, Tarlow, Minka 2014, "A* sampling"): the token is the argmax of its logit plus
standard Gumbel noise, which has the distribution of the softmax. A rounding difference in the logits changes the token
only where the two largest sums are closer than that difference. Inverse-CDF sampling compares one uniform number with
the cumulative probabilities, where a difference in any earlier token moves all later boundaries.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

CDF_BLOCK = 512
"""Block size, in tokens, of the search over a large vocabulary."""
LARGEST_UNIFORM = 1 - 2**-53
PHILOX_FACTORS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
PHILOX_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
PHILOX_BLOCKS = 1 << 13
"""Blocks of four numbers that are generated at once: their words stay in the processor's cache."""
SHORT_PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
SHORT_PHILOX_STEPS = (0x9E3779B9, 0xBB67AE85)
LOW_WORD = 2**32 - 1
GUMBEL_BLOCK = 32
"""Token ids of a block. One random number is their largest noise: most blocks of a large vocabulary need no other."""
TABLE_WORDS = 1 << 13
"""Noise values per position, of all rows, up to which a CPU computes many positions at once: a small model's step costs
less than its noise.
"""
DENSE_WORDS = 1 << 24
"""Noise values that a GPU computes at once."""
TRIED_BLOCKS = 256
"""Blocks of noise that a step of fixed shapes computes. With logits of SmolLM2 (temperatures .5 to 3) or of a normal
distribution, at most 121 blocks could contain the token.
"""
CACHE_WORDS = 1 << 19
"""Logits that a CPU searches at once: the words of their blocks stay in its cache."""


def uniforms(seed: int, stream: str, index: Tensor, count: int) -> Tensor:
    """Uniform numbers in [0, 1) per row, `[B, count]` float64: a function of (seed, stream, row index) alone.

    Philox keyed by a hash of the seed and the stream's name, and by the row's index. A longer `count` extends the same
    sequence, so a row does not depend on the batch, the rank or the response limit.
    """
    key, keys, blocks = _stream_key(seed, stream), index.cpu().numpy().astype(np.uint64), -(-count // 4)
    numbers = np.empty((len(keys), 4 * blocks))
    together = max(1, PHILOX_BLOCKS // max(1, blocks))
    for row in range(0, len(keys), together):
        words = _philox(key, keys[row : row + together], blocks)
        numbers[row : row + together] = (words >> np.uint64(11)) * 2.0**-53
    return torch.from_numpy(numbers[:, :count])


def row_keys(seed: int, stream: str, index: Tensor) -> Tensor:
    """A 64-bit key per row, `[B]` int64: a function of (seed, stream, row index) alone."""
    words = _philox(_stream_key(seed, stream), index.cpu().numpy().astype(np.uint64), 1)
    return torch.from_numpy(words[:, 0].astype(np.int64))


def _stream_key(seed: int, stream: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest(), "little")


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
    half, low = np.uint64(32), np.uint64(LOW_WORD)
    factor_high, factor_low = np.uint64(factor >> 32), np.uint64(factor % 2**32)
    high_part, low_part = numbers >> half, numbers & low
    middle = factor_high * low_part + (factor_low * low_part >> half)
    carry = (middle & low) + factor_low * high_part
    return factor_high * high_part + (middle >> half) + (carry >> half), np.uint64(factor) * numbers


class TokenNoise(Protocol):
    """The random numbers of `B` rows of up to `T` tokens; token t of row b is at `b * T + t`."""

    @property
    def shape(self) -> tuple[int, int]:
        """B and T."""
        ...

    def to(self, device: torch.device) -> TokenNoise:
        """The same numbers on a device."""
        ...

    def choose(self, logits: Tensor, places: Tensor) -> Tensor:
        """Sample a token for each row of tempered, filtered `logits [n, V]` (-inf: not allowed), at `places [n]`.

        Returns `[n]` int64.
        """
        ...

    def try_choose(self, logits: Tensor, places: Tensor) -> tuple[Tensor, Tensor | None]:
        """As `choose`, with operations and shapes that depend on no value; and whether the token of each row is
        known, `[n]` bool, or None where all are.
        """
        ...


@dataclass(frozen=True, slots=True)
class UniformNoise:
    """Inverse-CDF sampling in the order of the vocabulary, with one uniform number per token."""

    numbers: Tensor  # [B, T] float64, in [0, 1)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.numbers), self.numbers.shape[1]

    def to(self, device: torch.device) -> UniformNoise:
        return UniformNoise(self.numbers.to(device))

    def choose(self, logits: Tensor, places: Tensor) -> Tensor:
        logprobs = torch.log_softmax(logits, dim=-1)
        return _sample_inverse_cdf(logprobs, self.numbers.flatten()[places])

    def try_choose(self, logits: Tensor, places: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.choose(logits, places), None


class GumbelNoise:
    """Gumbel-max sampling: the noise of a token id does not depend on the vocabulary, the filters or other tokens.

    Blocks of `GUMBEL_BLOCK` ids have one number for their largest noise, at a uniform place in the block; the noise
    of the others is that of a Gumbel variable below it. A CPU skips a block where largest logit plus largest noise are
    below a sum that another block has; the result is that of all blocks.
    """

    def __init__(self, keys: Tensor, width: int) -> None:
        """`keys [B]` int64 of `row_keys`; `width`: T."""
        self._keys, self._width = keys, width
        self._table: Tensor | None = None  # [B, first positions, V]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._keys), self._width

    def to(self, device: torch.device) -> GumbelNoise:
        return GumbelNoise(self._keys.to(device), self._width)

    def choose(self, logits: Tensor, places: Tensor) -> Tensor:
        keys, positions = self._keys[places // self._width], places % self._width
        vocabulary = logits.shape[1]
        is_on_cpu = logits.device.type == "cpu"
        if is_on_cpu and len(self._keys) * vocabulary <= TABLE_WORDS:
            return (logits + self._noise_of_rows(places // self._width, positions, vocabulary)).argmax(dim=-1)
        return _choose(logits, keys, positions)

    def try_choose(self, logits: Tensor, places: Tensor) -> tuple[Tensor, Tensor | None]:
        return _try_choose(logits, self._keys[places // self._width], places % self._width)

    def _noise_of_rows(self, rows: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
        """Noise `[n, V]` from a table of all rows, which grows with their positions."""
        needed, known = int(positions.numpy().max()) + 1, 0 if self._table is None else self._table.shape[1]
        if needed > known:
            new = torch.arange(known, min(self._width, max(needed, 2 * known, 16)))
            counters = torch.cartesian_prod(torch.arange(len(self._keys)), new)
            noise = gumbel_noise(self._keys[counters[:, 0]], counters[:, 1], vocabulary)
            noise = noise.unflatten(0, (len(self._keys), len(new)))
            self._table = noise if self._table is None else torch.cat([self._table, noise], dim=1)
        assert self._table is not None
        return self._table[rows, positions]


class PositionNoise:
    """The Gumbel noise of one token of each row: the token of row b is at `b`."""

    def __init__(self, keys: Tensor, positions: Tensor) -> None:
        """`keys [B]` int64 of `row_keys`, and the `positions [B]` of the tokens."""
        self._keys, self._positions = keys, positions

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._keys), 1

    def to(self, device: torch.device) -> PositionNoise:
        return PositionNoise(self._keys.to(device), self._positions.to(device))

    def choose(self, logits: Tensor, places: Tensor) -> Tensor:
        return _choose(logits, self._keys[places], self._positions[places])

    def try_choose(self, logits: Tensor, places: Tensor) -> tuple[Tensor, Tensor | None]:
        return _try_choose(logits, self._keys[places], self._positions[places])


def gumbel_noise(keys: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """Standard Gumbel noise of every token id, `[n, V]` float32, of rows with these keys at these positions `[n]`."""
    count = -(-vocabulary // GUMBEL_BLOCK)
    largest, place = _block_maxima(keys, positions, count, torch)
    block = torch.arange(count, device=keys.device)
    noise = _noise_below(keys[:, None], positions[:, None], block, largest, place, torch)
    return noise.flatten(1)[:, :vocabulary].float()


def _choose(logits: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """The argmax of logits plus noise, `[n]`."""
    is_on_cpu = logits.device.type == "cpu"
    rows = max(1, (CACHE_WORDS if is_on_cpu else DENSE_WORDS) // logits.shape[1])
    parts = zip(logits.split(rows), keys.split(rows), positions.split(rows), strict=True)
    choose = _choose_by_blocks if is_on_cpu else _choose_densely
    return torch.cat([choose(*part) for part in parts])


def _try_choose(logits: Tensor, keys: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
    """As `_choose`, with operations and shapes that depend on no value; see `TokenNoise.try_choose`."""
    if logits.shape[1] <= TRIED_BLOCKS * GUMBEL_BLOCK:
        return _choose_densely(logits, keys, positions), None
    return _try_best_blocks(logits, keys, positions)


def _choose_densely(logits: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """The argmax of logits plus noise, `[n]`; no size depends on a value, as a CUDA graph requires."""
    return (logits + gumbel_noise(keys, positions, logits.shape[1])).argmax(dim=-1)


def _try_best_blocks(logits: Tensor, keys: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The argmax of logits plus noise among the `TRIED_BLOCKS` blocks with the largest bounds, `[n]`, and whether no
    other block can contain a larger sum, `[n]` bool; no size depends on a value.
    """
    count = -(-logits.shape[1] // GUMBEL_BLOCK)
    logits = pad(logits, (0, count * GUMBEL_BLOCK - logits.shape[1]), value=-math.inf).unflatten(1, (count, -1))
    largest, place = _block_maxima(keys, positions, count, torch)
    bounds, block = (logits.amax(dim=2) + largest.float()).topk(TRIED_BLOCKS + 1, dim=1)
    block = block[:, :-1]
    noise = _noise_below(
        keys[:, None], positions[:, None], block, largest.gather(1, block), place.gather(1, block), torch
    )
    sums = logits.gather(1, block[..., None].expand(-1, -1, GUMBEL_BLOCK)) + noise.float()
    best, token = sums.flatten(1).max(dim=1)
    tokens = block.gather(1, (token // GUMBEL_BLOCK)[:, None])[:, 0] * GUMBEL_BLOCK + token % GUMBEL_BLOCK
    return tokens, ~(bounds[:, -1] >= best)  # logits that are not numbers: known, their log-probability reports it


def _choose_by_blocks(logits: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """The argmax of logits plus noise, `[n]`; computes the noise of those blocks alone that may contain it."""
    count = -(-logits.shape[1] // GUMBEL_BLOCK)
    if missing := count * GUMBEL_BLOCK - logits.shape[1]:
        logits = pad(logits, (0, missing), value=-math.inf)
    key, position = keys.numpy(), positions.numpy()
    largest, place = _block_maxima(key, position, count, np)
    heights = largest.astype(np.float32)
    ceiling = logits.unflatten(1, (count, GUMBEL_BLOCK)).amax(dim=2).numpy() + heights
    reached = logits.gather(1, torch.from_numpy(place + GUMBEL_BLOCK * np.arange(count))).numpy() + heights
    # Not `>=`: a row of logits that are not numbers keeps a block, and its log-probability reports it.
    row, block = np.nonzero(~((ceiling < reached.max(axis=1, keepdims=True)) | (ceiling == -np.inf)))
    noise = _noise_below(key[row], position[row], block, largest[row, block], place[row, block], np)
    sums = logits.numpy().reshape(len(key), count, GUMBEL_BLOCK)[row, block] + noise.astype(np.float32)
    order = np.lexsort((-sums.max(axis=1), row))  # the best block of each row comes first
    first = order[np.searchsorted(row, np.arange(len(key)))]
    return torch.from_numpy(block[first] * GUMBEL_BLOCK + sums[first].argmax(axis=1))


def _block_maxima(keys: Any, positions: Any, count: int, library: Any) -> tuple[Any, Any]:
    """The largest noise of the first `count` blocks, float64, and its place in the block, `[n, count]`.

    Arrays of numpy or tensors of torch; four random words serve two blocks.
    """
    pairs = _arange(-(-count // 2), keys)
    words = library.stack(_short_philox((pairs, positions[:, None], 0, 0), keys[:, None]), -1)  # [n, pairs, 4]
    exponential = _exponential(words[..., ::2], library).reshape(len(keys), -1)[:, :count]
    place = words[..., 1::2].reshape(len(keys), -1)[:, :count] >> (33 - GUMBEL_BLOCK.bit_length())
    return math.log(GUMBEL_BLOCK) - library.log(exponential), place


def _noise_below(keys: Any, positions: Any, block: Any, largest: Any, place: Any, library: Any) -> Any:
    """The noise of the ids of blocks `[...]`, `[..., GUMBEL_BLOCK]` float64, given the largest one and its place.

    The others are Gumbel variables below the largest: -log(exp(-largest) + E), where E is exponential.
    """
    counters = block[..., None] * (GUMBEL_BLOCK // 4) + _arange(GUMBEL_BLOCK // 4, keys)
    words = library.stack(_short_philox((counters, positions[..., None], 1, 0), keys[..., None]), -1)
    exponential = _exponential(words.reshape(*words.shape[:-2], GUMBEL_BLOCK), library)
    largest, is_largest = largest[..., None], _arange(GUMBEL_BLOCK, keys) == place[..., None]
    return library.where(is_largest, largest, -library.log(library.exp(-largest) + exponential))


def _arange(count: int, like: Any) -> Any:
    return torch.arange(count, device=like.device) if isinstance(like, Tensor) else np.arange(count)


def _exponential(words: Any, library: Any) -> Any:
    """Exponential variables, float64, from 32-bit words."""
    return -library.log((words + 0.5) * 2.0**-32)


def _short_philox(counter: tuple[Any, Any, Any, Any], key: Any) -> tuple[Any, Any, Any, Any]:
    """Four 32-bit words for each counter and 64-bit key, as int64: Philox4x32 of ten rounds (Salmon et al. 2011).

    For arrays of numpy and tensors of torch, which broadcast: a CPU and a GPU give equal bits.
    """
    odd, even = _stack(counter[::2], key), _stack(counter[1::2], key)  # words 0 and 2, and words 1 and 3
    keys = _stack((key & LOW_WORD, (key >> 32) & LOW_WORD), key)
    factors, steps = _stack(SHORT_PHILOX_FACTORS, key), _stack(SHORT_PHILOX_STEPS, key)
    dims = max(odd.ndim, even.ndim, keys.ndim) - 1
    odd, even, keys, factors, steps = (
        part.reshape(2, *(1,) * (dims + 1 - part.ndim), *part.shape[1:]) for part in (odd, even, keys, factors, steps)
    )
    for _ in range(10):
        product = odd * factors  # wraps at 2^64
        odd = _swap((product >> 32) & LOW_WORD) ^ even ^ keys
        even = _swap(product & LOW_WORD)
        keys = (keys + steps) & LOW_WORD
    return odd[0], even[0], odd[1], even[1]


def _stack(pair: Any, like: Any) -> Any:
    """Two arrays or numbers, broadcast to each other, `[2, ...]` int64; nothing is copied from the host."""
    if not isinstance(like, Tensor):
        return np.stack(np.broadcast_arrays(*pair)).astype(np.int64, copy=False)
    whole = {"dtype": torch.long, "device": like.device}
    tensors = [part if isinstance(part, Tensor) else torch.full((), part, **whole) for part in pair]
    return torch.stack(torch.broadcast_tensors(*tensors))


def _swap(pair: Any) -> Any:
    return pair.flip(0) if isinstance(pair, Tensor) else pair[::-1]


def _sample_inverse_cdf(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """The token, in vocabulary order, at each row's number in [0, 1) of the cumulative distribution, `[n]`.

    The cumulative sum is in float64: float32 would lose the flat tail of a large vocabulary. A large vocabulary is
    searched in two steps, first for a block of tokens, so that only block sums and one block are cumulated.
    """
    probabilities = logprobs.exp()
    vocabulary, point = probabilities.shape[1], uniform[:, None].double()
    if vocabulary <= CDF_BLOCK:
        tokens, _ = _search_cumulative(probabilities, point)
    else:
        blocks = pad(probabilities, (0, -vocabulary % CDF_BLOCK)).unflatten(1, (-1, CDF_BLOCK))
        block, inside = _search_cumulative(blocks.sum(dim=2), point)
        rows = torch.arange(len(blocks), device=blocks.device)
        token, _ = _search_cumulative(blocks[rows, block[:, 0]], inside)
        tokens = (block * CDF_BLOCK + token).clamp_(max=vocabulary - 1)
    # A parallel cumulative sum may be non-monotone in the last bit, so an impossible token can still be selected.
    impossible = probabilities.gather(1, tokens) == 0
    return torch.where(impossible, logprobs.argmax(dim=-1, keepdim=True), tokens).squeeze(1)


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
