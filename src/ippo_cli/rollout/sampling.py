"""Token sampling: temperature, filters, and log-probabilities; `noise.py` has the random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ippo_cli.rollout.noise import CACHE_WORDS, TokenNoise


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling settings; names and meanings as in the config, except `greedy`. The defaults sample from the model."""

    max_new_tokens: int
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0  # 1 = off
    top_k: int = 0  # 0 = off
    min_p: float = 0.0  # 0 = off
    repetition_penalty: float = 1.0  # 1 = off
    stop_strings: tuple[str, ...] = ()
    greedy: bool = False

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


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token for each row, all `[n]`."""

    tokens: Tensor  # int64
    logprobs: Tensor  # float32: tempered, before any filter
    behavior_logprobs: Tensor  # float32, of the filtered distribution; the same tensor without a filter
    known: Tensor | None  # bool: whether the token was found; None: all were


def sample_tokens(
    logits: Tensor,
    sampling: Sampling,
    *,
    noise: TokenNoise | None,
    places: Tensor,
    seen: Tensor | None,
    banned: Tensor | None,
    with_fixed_shapes: bool = False,
) -> SampledTokens:
    """Sample the next token of every row of `logits [n, V]`, with the noise at `places [n]`.

    `noise` may be `None` only for greedy decoding. `seen [n, V]` marks the tokens with a repetition penalty, `banned
    [n, V]` tokens that are not allowed yet. `with_fixed_shapes`: no operation depends on a value, and the token of a
    row may remain unknown (`TokenNoise.try_choose`). A CPU samples few rows at once: their logits stay in its cache.
    """
    if with_fixed_shapes or logits.device.type != "cpu":
        return _sample_rows(logits, sampling, noise, places, seen, banned, with_fixed_shapes)
    together = max(1, CACHE_WORDS // logits.shape[1])
    parts = [
        _sample_rows(
            logits[rows],
            sampling,
            noise,
            places[rows],
            None if seen is None else seen[rows],
            None if banned is None else banned[rows],
            False,
        )
        for rows in (slice(start, start + together) for start in range(0, max(len(logits), 1), together))
    ]
    return parts[0] if len(parts) == 1 else _concatenate(parts)


def _concatenate(parts: Sequence[SampledTokens]) -> SampledTokens:
    logprobs = torch.cat([part.logprobs for part in parts])
    is_filtered = parts[0].behavior_logprobs is not parts[0].logprobs
    behavior = torch.cat([part.behavior_logprobs for part in parts]) if is_filtered else logprobs
    return SampledTokens(torch.cat([part.tokens for part in parts]), logprobs, behavior, None)


def _sample_rows(
    logits: Tensor,
    sampling: Sampling,
    noise: TokenNoise | None,
    places: Tensor,
    seen: Tensor | None,
    banned: Tensor | None,
    with_fixed_shapes: bool,
) -> SampledTokens:
    known = None
    logits = logits.float()
    tempered = _divide(logits, sampling)
    logprobs = torch.log_softmax(tempered, dim=-1)
    allowed = _filter_logits(logits, sampling, seen, banned) if sampling.is_filtered else tempered
    if sampling.greedy:
        # Over logits: rounding in a division or in the log-softmax could create ties.
        tokens = (allowed if sampling.is_filtered else logits).argmax(dim=-1)
    else:
        assert noise is not None
        if with_fixed_shapes:
            tokens, known = noise.try_choose(allowed, places)
        else:
            tokens = noise.choose(allowed, places)
    chosen = logprobs.gather(1, tokens[:, None]).squeeze(1)
    if not sampling.is_filtered:
        return SampledTokens(tokens, chosen, chosen, known)
    behavior = torch.log_softmax(allowed, dim=-1).gather(1, tokens[:, None]).squeeze(1)
    return SampledTokens(tokens, chosen, behavior, known)


def tempered_logprobs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities of the next token before any filter, `[n, V]`."""
    return torch.log_softmax(_divide(logits.float(), sampling), dim=-1)


def behavior_logprobs(logits: Tensor, sampling: Sampling, *, banned: Tensor | None) -> Tensor:
    """Log-probabilities from which the next token is sampled, without a repetition penalty, `[n, V]`."""
    if not sampling.is_filtered:
        return tempered_logprobs(logits, sampling)
    return torch.log_softmax(_filter_logits(logits.float(), sampling, None, banned), dim=-1)


def _divide(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits divided by the temperature; the same tensor where it is 1."""
    return logits if sampling.divisor == 1 else logits / sampling.divisor


def _filter_logits(logits: Tensor, sampling: Sampling, seen: Tensor | None, banned: Tensor | None) -> Tensor:
    """Tempered logits after penalty, ban and filters: -inf for tokens that cannot be sampled."""
    if seen is not None:
        penalty = sampling.repetition_penalty
        logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
    if banned is not None:
        logits = logits.masked_fill(banned, -math.inf)
    tempered = _divide(logits, sampling)
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
        before[:, 0].zero_()
        values = values.masked_fill(before >= sampling.top_p * cumulated[:, -1:], -math.inf)
    return torch.full_like(tempered, -math.inf).scatter_(1, ids, values)
