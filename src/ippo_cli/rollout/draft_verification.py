"""Verification of drafts: which tokens would a model have sampled itself, where another sampler has drawn them?

The token of a state is a function of the model's logits and of the row's noise, so one forward over prompt and draft
gives the model's own token of every position. The tokens up to the first that differs, and the model's token there,
are the model's sample, whatever the draft is: no probability of the sampler is needed. Speculative sampling (Leviathan
et al. 2023, arXiv 2211.17192) accepts a token by the ratio of both probabilities, and needs the sampler's whole
distribution where it rejects one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ippo_cli.models.actor import Policy
from ippo_cli.models.load import backbone_of
from ippo_cli.models.packing import last_hidden_states, pack
from ippo_cli.rollout.noise import TokenNoise
from ippo_cli.rollout.sampling import Sampling, sample_tokens

MAX_TOKENS = 8192
"""Tokens of one forward, unless one row has more."""
MAX_LOGITS = 1 << 24
"""Logits that are computed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Tokens that another sampler has drawn after a prompt and the first tokens of a response."""

    row: int  # of the noise
    prompt: Sequence[int]
    response: Sequence[int]  # verified
    tokens: Sequence[int]  # to be verified, at least one

    @property
    def before(self) -> int:
        """Tokens before the draft."""
        return len(self.prompt) + len(self.response)

    @property
    def num_read(self) -> int:
        """The length of `sequence`."""
        return self.before + len(self.tokens) - 1

    @property
    def sequence(self) -> list[int]:
        """The tokens that the model reads: without the last one, which no token of the draft follows."""
        return [*self.prompt, *self.response, *self.tokens[:-1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedTokens:
    """The model's own tokens in place of a draft, up to the first that differs from it, which is included."""

    ids: list[int]
    logprobs: Tensor  # [n] float32 on the CPU, tempered and unfiltered
    behavior_logprobs: Tensor  # [n] float32 on the CPU, of the filtered distribution


@torch.no_grad()
def verify_drafts(
    policy: Policy,
    drafts: Sequence[Draft],
    sampling: Sampling,
    *,
    noise: TokenNoise | None,
    stop_ids: Sequence[int],
) -> list[VerifiedTokens]:
    """The tokens of each draft that the policy samples itself with its rows' `noise` (None: greedy), and the first
    other one. `stop_ids` are not allowed before `min_new_tokens`. Raises `FloatingPointError` if logits are no numbers.
    """
    device = policy.lm.device
    noise = None if noise is None else noise.to(device)
    verified: dict[int, VerifiedTokens] = {}
    for numbers in _split_drafts(drafts):
        batch = [drafts[number] for number in numbers]
        states = _read_drafts(policy, batch)
        tokens, logprobs, behavior = _sample_own_tokens(policy, batch, states, sampling, noise, stop_ids)
        if not torch.isfinite(logprobs).all():
            raise FloatingPointError("the model's logits are not numbers: drafts cannot be verified")
        counts = [len(draft.tokens) for draft in batch]
        parts = (part.cpu().split(counts) for part in (tokens, logprobs, behavior))
        for number, draft, own, plain, filtered in zip(numbers, batch, *parts, strict=True):
            length = _count_agreeing_tokens(own.tolist(), draft.tokens)
            verified[number] = VerifiedTokens(
                ids=own[:length].tolist(), logprobs=plain[:length], behavior_logprobs=filtered[:length]
            )
    return [verified[number] for number in range(len(drafts))]


def _split_drafts(drafts: Sequence[Draft]) -> Iterator[list[int]]:
    """The numbers of the drafts of each forward, longest first."""
    batch: list[int] = []
    total = 0
    for number in sorted(range(len(drafts)), key=lambda number: -drafts[number].num_read):
        length = drafts[(batch or [number])[0]].num_read  # the longest: rows may be padded to it
        if batch and total + length > MAX_TOKENS:
            yield batch
            batch, total = [], 0
            length = drafts[number].num_read
        batch.append(number)
        total += length
    if batch:
        yield batch


def _read_drafts(policy: Policy, batch: Sequence[Draft]) -> Tensor:
    """The states before the tokens of all drafts, `[n, H]`, draft by draft; drafts are longest first."""
    device = policy.lm.device
    sequences = [draft.sequence for draft in batch]
    lengths = [len(sequence) for sequence in sequences]
    if policy.packs:
        ids = torch.tensor([token for sequence in sequences for token in sequence], device=device)[None]
        packing, starts = pack(lengths, device), [sum(lengths[:place]) for place in range(len(lengths))]
    else:
        width = lengths[0]
        ids = torch.tensor([[*sequence, *[0] * (width - len(sequence))] for sequence in sequences], device=device)
        packing, starts = None, [place * width for place in range(len(lengths))]
    places = [
        start + draft.before - 1 + number
        for start, draft in zip(starts, batch, strict=True)
        for number in range(len(draft.tokens))
    ]
    states = last_hidden_states(backbone_of(policy.lm), ids, packing)
    return states.index_select(0, torch.tensor(places, device=device))


def _sample_own_tokens(
    policy: Policy,
    batch: Sequence[Draft],
    states: Tensor,
    sampling: Sampling,
    noise: TokenNoise | None,
    stop_ids: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """The policy's own token in every state, its log-probability, and that of the filtered distribution, each `[n]`."""
    device = states.device
    counts = torch.tensor([len(draft.tokens) for draft in batch])
    draft_of = torch.arange(len(batch)).repeat_interleave(counts)
    column = torch.arange(len(draft_of)) - (counts.cumsum(0) - counts)[draft_of]  # in its draft
    position = column + torch.tensor([len(draft.response) for draft in batch])[draft_of]  # in its response
    width = 0 if noise is None else noise.shape[1]
    places = (torch.tensor([draft.row for draft in batch])[draft_of] * width + position).to(device)
    chosen = []
    size = max(1, MAX_LOGITS // policy.lm.config.get_text_config().vocab_size)
    for start in range(0, len(states), size):
        part = slice(start, start + size)
        logits = policy.logits(states[part])
        banned = seen = None
        if sampling.min_new_tokens:
            stops = torch.zeros(logits.shape[1], dtype=torch.bool, device=device)
            stops[list(stop_ids)] = True
            banned = (position[part] < sampling.min_new_tokens).to(device)[:, None] & stops
        if sampling.repetition_penalty != 1:
            seen = _find_seen_tokens(batch, draft_of[part], column[part], logits.shape[1]).to(device)
        chosen.append(sample_tokens(logits, sampling, noise=noise, places=places[part], seen=seen, banned=banned))
    return (
        torch.cat([one.tokens for one in chosen]),
        torch.cat([one.logprobs for one in chosen]),
        torch.cat([one.behavior_logprobs for one in chosen]),
    )


def _find_seen_tokens(batch: Sequence[Draft], draft_of: Tensor, column: Tensor, vocabulary: int) -> Tensor:
    """The tokens before each state's token, `[n, V]` bool."""
    seen = torch.zeros(len(draft_of), vocabulary, dtype=torch.bool)
    for number in draft_of.unique().tolist():
        sequence = torch.tensor(batch[number].sequence)
        first = torch.full((vocabulary,), len(sequence)).scatter_reduce_(
            0, sequence, torch.arange(len(sequence)), "amin"
        )  # the first place of each token
        rows = draft_of == number
        seen[rows] = first < (batch[number].before + column[rows])[:, None]
    return seen


def _count_agreeing_tokens(own: Sequence[int], tokens: Sequence[int]) -> int:
    """The number of tokens up to the first that differs, which counts."""
    return next((place + 1 for place, pair in enumerate(zip(own, tokens, strict=True)) if pair[0] != pair[1]), len(own))
