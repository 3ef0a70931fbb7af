"""Enumerates the responses of a policy with their probabilities, where these are few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ippo_cli.rollout.decode import stop_ids
from ippo_cli.rollout.sampling import Sampling, behavior_logprobs, tempered_logprobs
from ippo_cli.types import Completion

MAX_DROPPED = 1e-3
"""Probability of all responses that are left out, the least likely ones, by default."""
BATCH_TOKENS = 1 << 15


@dataclass(frozen=True, slots=True)
class WeightedResponses:
    """Responses with their probabilities, which sum to 1 minus that of the responses that are left out."""

    completions: list[Completion]
    probabilities: Tensor  # [n] float64


@dataclass
class _Prefixes:
    """Responses of one length that continue, `[n, t]`."""

    ids: Tensor
    logprobs: Tensor  # float32, tempered
    probabilities: Tensor  # [n] float64


@torch.no_grad()
def enumerate_responses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: Sequence[int],
    first_tokens: Sequence[int],
    sampling: Sampling,
    *,
    context_limit: int,
    max_count: int,
    max_dropped: float = MAX_DROPPED,
) -> WeightedResponses | None:
    """All responses to a prompt that begin with the given tokens; None if more than `max_count` are needed.

    The least likely ones are left out, of a probability of `max_dropped` together. Stop strings and repetition
    penalties are not supported. Log-probabilities of given tokens are 0.
    """
    assert not sampling.stop_strings
    assert sampling.repetition_penalty == 1.0
    device = next(model.parameters()).device
    limit = min(sampling.max_new_tokens, context_limit - len(prompt))
    stops = torch.tensor(stop_ids(model, tokenizer), dtype=torch.long, device=device)
    alive = _Prefixes(
        torch.tensor([list(first_tokens)], dtype=torch.long, device=device),
        torch.zeros(1, len(first_tokens), device=device),
        torch.ones(1, dtype=torch.float64, device=device),
    )
    found: list[tuple[_Prefixes, bool]] = []
    dropped, count = 0.0, 0
    for length in range(len(first_tokens), limit):
        alive, behavior = _extend(model, prompt, alive, sampling, stops)
        remains = behavior > 0
        allowance = max_dropped * (length + 1 - len(first_tokens)) / (limit - len(first_tokens)) - dropped
        order = torch.argsort(behavior)
        least = order[behavior[order].cumsum(0) <= allowance]
        dropped += float(behavior[least].sum())
        remains[least] = False
        ended = torch.isin(alive.ids[:, -1], stops)
        done = remains & ended if length + 1 < limit else remains
        found += [(_select(alive, done & ended), True), (_select(alive, done & ~ended), False)]
        alive = _select(alive, remains & ~done)
        count += int(done.sum())
        if count + len(alive.ids) > max_count:
            return None
        if not len(alive.ids):
            break
    completions = [
        completion for part, finished in found for completion in _completions(part, tokenizer, finished=finished)
    ]
    return WeightedResponses(completions, torch.cat([part.probabilities for part, _ in found]).cpu())


def _extend(
    model: PreTrainedModel, prompt: Sequence[int], alive: _Prefixes, sampling: Sampling, stops: Tensor
) -> tuple[_Prefixes, Tensor]:
    """Every prefix with every next token, and their probabilities `[n * V]`."""
    count, length = alive.ids.shape
    before = torch.tensor([list(prompt)], dtype=torch.long, device=alive.ids.device)
    rows = max(1, BATCH_TOKENS // (before.shape[1] + length))
    logits = torch.cat(
        [
            model(input_ids=torch.cat([before.expand(len(part), -1), part], dim=1), use_cache=False).logits[:, -1]
            for part in alive.ids.split(rows)
        ]
    )
    banned = None
    if length < sampling.min_new_tokens:
        banned = torch.zeros_like(logits, dtype=torch.bool)
        banned[:, stops] = True
    plain, behavior = tempered_logprobs(logits, sampling), behavior_logprobs(logits, sampling, banned=banned)
    vocabulary = logits.shape[1]
    tokens = torch.arange(vocabulary, device=logits.device).repeat(count)
    probabilities = alive.probabilities[:, None] * behavior.double().exp()
    return _Prefixes(
        torch.cat([alive.ids.repeat_interleave(vocabulary, dim=0), tokens[:, None]], dim=1),
        torch.cat([alive.logprobs.repeat_interleave(vocabulary, dim=0), plain.flatten()[:, None]], dim=1),
        probabilities.flatten(),
    ), probabilities.flatten()


def _select(prefixes: _Prefixes, mask: Tensor) -> _Prefixes:
    return _Prefixes(prefixes.ids[mask], prefixes.logprobs[mask], prefixes.probabilities[mask])


def _completions(part: _Prefixes, tokenizer: PreTrainedTokenizerBase, *, finished: bool) -> list[Completion]:
    if not len(part.ids):
        return []
    texts = tokenizer.batch_decode(
        part.ids.tolist(),
        skip_special_tokens=True,
        clean_up_tokenization_spaces=False,
        spaces_between_special_tokens=False,
    )
    return [
        Completion(ids=ids, logprobs=logprobs, behavior_logprobs=logprobs, text=text, finished=finished)
        for ids, logprobs, text in zip(part.ids.cpu(), part.logprobs.cpu(), texts, strict=True)
    ]
