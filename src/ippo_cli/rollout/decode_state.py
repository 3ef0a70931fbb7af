"""State of a decoding call: tokens, log-probabilities and end flags, by the rows' original positions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ippo_cli.rollout.noise import TokenNoise
from ippo_cli.rollout.prefix_cache import PrefixCache
from ippo_cli.rollout.sampling import Sampling, sample_tokens
from ippo_cli.types import Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    """The prompts of a decoding call, and what is set for each of its rows.

    With `prefixes` every finished row is stored under its key of `keys`, and a later prompt of the same key reads only
    the tokens after the stored ones. This changes samples only by rounding; models that do not support it read every
    prompt whole.
    """

    prompts: Sequence[Sequence[int]]
    noise: TokenNoise | None  # [B, max_new_tokens]; None: greedy decoding
    max_new_tokens: Sequence[int] | None = None  # limits below that of the sampling settings
    stop_strings: Sequence[tuple[str, ...]] | None = None  # in addition to those of the sampling settings
    responses: Sequence[Sequence[int]] | None = None  # first tokens, given: limits count them, log-probabilities are 0
    prefixes: PrefixCache | None = None
    keys: Sequence[Hashable] | None = None
    readers: np.ndarray | None = None  # [B] the policy of each row, for models with several (adapters)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeHooks:
    """The functions that a decoding call calls."""

    poll: Callable[[int, int], None] | None = None  # after every token: finished rows, all rows; may raise
    # Rows when they end and their completions, without rows that have no room.
    on_finished: Callable[[list[int], list[Completion]], None] | None = None
    # Whether a flag is true on any rank: all ranks then make the same sequence of forwards, as layer-by-layer gathering
    # of weights requires.
    any_rank: Callable[[bool], bool] | None = None
    select: Callable[[np.ndarray], None] | None = None  # before every forward: the policies of its rows


class DecodeState:
    """The growing response of every row, and the set of live rows.

    Buffers `[B, max_new_tokens]` have one row for each prompt. Live rows are in the order of the forwards and point
    into the buffers by one flat index, so a step can write rows of different lengths at once.
    """

    def __init__(
        self,
        rows: DecodeRows,
        limits: np.ndarray,
        sampling: Sampling,
        stop_ids: tuple[int, ...],
        tokenizer: PreTrainedTokenizerBase,
        device: torch.device,
    ) -> None:
        """`limits` `[B]`: the most tokens of each response."""
        shape = len(limits), sampling.max_new_tokens
        self.ids = torch.zeros(shape, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(shape, device=device)
        self.behavior_logprobs = torch.zeros(shape, device=device) if sampling.is_filtered else self.logprobs
        self.lengths = np.zeros(len(limits), dtype=np.int64)
        self._prompts, self._first_tokens = _to_arrays(rows.prompts), _to_arrays(rows.responses or ())
        if self._first_tokens:
            self.lengths += [len(tokens) for tokens in self._first_tokens]
            columns = torch.arange(shape[1]) < torch.from_numpy(self.lengths)[:, None]
            self.ids[columns.to(device)] = torch.from_numpy(np.concatenate(self._first_tokens)).to(device)
        self.finished = np.zeros(len(limits), dtype=bool)
        self.rows = np.zeros(0, dtype=np.int64)
        self.tokens = torch.zeros(0, dtype=torch.long, device=device)  # the newest token of every live row
        self._flat = self.tokens
        self.limits, self.sampling, self.stop_ids = limits, sampling, stop_ids
        self._tokenizer = tokenizer
        assert sampling.greedy or (rows.noise is not None and rows.noise.shape == shape)
        self.noise = None if rows.noise is None else rows.noise.to(device)
        self._stops: Tensor | None = None  # [V] bool
        self._seen: Tensor | None = None  # [live rows, V] bool
        row_stops = rows.stop_strings or [()] * len(limits)
        self._stop_strings = [(*sampling.stop_strings, *own) for own in row_stops]  # by row
        every = {text for texts in self._stop_strings for text in texts}
        # Enough tokens for any stop string at one byte per token, plus some that decode to nothing.
        self._tail = 8 + max((len(text.encode()) for text in every), default=0)
        self.has_stop_strings = bool(every)

    @property
    def inputs(self) -> list[np.ndarray]:
        """By row, what is read before the first token is sampled: the prompt and the first tokens of the response."""
        if not self._first_tokens:
            return self._prompts
        return [np.concatenate(parts) for parts in zip(self._prompts, self._first_tokens, strict=True)]

    def record(self, logits: Tensor, joining: np.ndarray) -> np.ndarray:
        """Sample one token for each live row and for joining rows; return the rows that continue, `[n]` bool."""
        self._add_rows(joining, logits.shape[1])
        choice = sample_tokens(
            logits,
            self.sampling,
            noise=self.noise,
            places=self._flat,
            seen=self._seen,
            banned=self._banned_tokens(),
        )
        self.tokens = choice.tokens
        self.ids.view(-1)[self._flat] = choice.tokens
        self.logprobs.view(-1)[self._flat] = choice.logprobs
        if self.behavior_logprobs is not self.logprobs:
            self.behavior_logprobs.view(-1)[self._flat] = choice.behavior_logprobs
        if self._seen is not None:
            self._seen.scatter_(1, choice.tokens[:, None], True)
        self.lengths[self.rows] += 1
        assert self._stops is not None
        ended = self._stops[choice.tokens].cpu().numpy()
        if self.has_stop_strings:
            ended = ended | self._ends_with_stop_string()
        self.finished[self.rows] = ended
        self._flat = self._flat + 1
        return ~(ended | (self.lengths[self.rows] >= self.limits[self.rows]))

    def keep(self, order: np.ndarray) -> None:
        """Keep these live rows, in this order."""
        self.rows = self.rows[order]
        places = torch.from_numpy(order).to(self.tokens.device)
        self.tokens, self._flat = self.tokens[places], self._flat[places]
        if self._seen is not None:
            self._seen = self._seen[places]

    def completions(self, rows: np.ndarray) -> list[Completion]:
        """Completions of these rows; their text excludes special tokens and is otherwise unchanged."""
        lengths = self.lengths[rows]
        ends, counts = lengths.cumsum(), lengths.tolist()
        flat = np.arange(lengths.sum()) + np.repeat(rows * self.ids.shape[1] - ends + lengths, lengths)
        places = torch.from_numpy(flat).to(self.ids.device)
        ids = self.ids.view(-1)[places].cpu().split(counts)
        logprobs = behavior = self.logprobs.view(-1)[places].cpu().split(counts)
        if self.behavior_logprobs is not self.logprobs:
            behavior = self.behavior_logprobs.view(-1)[places].cpu().split(counts)
        texts = self._decode([row_ids.tolist() for row_ids in ids], special=False)
        parts = zip(ids, logprobs, behavior, texts, self.finished[rows].tolist(), strict=True)
        return [
            Completion(ids=row_ids, logprobs=plain, behavior_logprobs=drawn_from, text=text, finished=finished)
            for row_ids, plain, drawn_from, text, finished in parts
        ]

    def tokens_read(self, rows: np.ndarray) -> list[np.ndarray]:
        """Prompt and response of these rows, without the newest token, which the model has not read."""
        responses = self.ids[torch.from_numpy(rows).to(self.ids.device)].cpu().numpy()
        lengths = self.lengths[rows].tolist()
        return [
            np.concatenate([self._prompts[row], response[: length - 1]])
            for row, response, length in zip(rows, responses, lengths, strict=True)
        ]

    def _add_rows(self, rows: np.ndarray, vocabulary: int) -> None:
        device = self.tokens.device
        if self._stops is None:
            self._stops = torch.zeros(vocabulary, dtype=torch.bool, device=device)
            self._stops[list(self.stop_ids)] = True
        if not len(rows):
            return
        self.rows = np.concatenate([self.rows, rows])
        places = torch.from_numpy(rows).to(device)
        starts = torch.from_numpy(self.lengths[rows]).to(device)
        self._flat = torch.cat([self._flat, places * self.ids.shape[1] + starts])
        if self.sampling.repetition_penalty != 1:
            seen = self.find_seen_tokens(rows, vocabulary)
            self._seen = seen if self._seen is None else torch.cat([self._seen, seen])

    def _banned_tokens(self) -> Tensor | None:
        """Stop tokens of rows below the minimum length, `[n, V]`."""
        assert self._stops is not None
        young = self.lengths[self.rows] < self.sampling.min_new_tokens
        if not young.any():
            return None
        return torch.from_numpy(young).to(self.tokens.device)[:, None] & self._stops

    def _ends_with_stop_string(self) -> np.ndarray:
        """Live rows where the newest tokens complete a stop string, `[n]` bool; earlier steps checked older tokens.

        Special tokens count as text, as in `generate`: `</think>` is a stop string whether it is a special token or
        not.
        """
        columns = np.arange(-self._tail + 1, 1)
        tails = self.ids.view(-1)[(self._flat[:, None] + torch.from_numpy(columns).to(self._flat.device)).clamp_(min=0)]
        ages = self.lengths[self.rows].tolist()
        newest = [tail[max(0, self._tail - age) :] for tail, age in zip(tails.tolist(), ages, strict=True)]
        return self.find_stop_strings(self.rows.tolist(), newest)

    def find_stop_strings(self, rows: Sequence[int], responses: Sequence[list[int]]) -> np.ndarray:
        """Rows where the newest tokens of a response complete a stop string, `[n]` bool."""
        texts = self._decode([response[-self._tail :] for response in responses], special=True)
        stops = [self._stop_strings[row] for row in rows]
        return np.array([any(stop in text for stop in own) for own, text in zip(stops, texts, strict=True)], dtype=bool)

    def given_tokens(self, row: int) -> list[int]:
        """The first tokens of a row's response that are given."""
        return self._first_tokens[row].tolist() if self._first_tokens else []

    def find_seen_tokens(self, rows: np.ndarray, vocabulary: int) -> Tensor:
        """The tokens of prompt and response of each row, `[n, V]` bool."""
        device = self.ids.device
        responses = self.ids[torch.from_numpy(rows).to(device)].cpu().numpy()
        texts = [
            np.concatenate([self._prompts[row], response[:length]])
            for row, response, length in zip(rows, responses, self.lengths[rows].tolist(), strict=True)
        ]
        place = np.repeat(np.arange(len(rows)), [len(text) for text in texts])
        seen = torch.zeros(len(rows), vocabulary, dtype=torch.bool, device=device)
        seen[torch.from_numpy(place).to(device), torch.from_numpy(np.concatenate(texts)).to(device)] = True
        return seen

    def _decode(self, responses: list[list[int]], *, special: bool) -> list[str]:
        """Decode responses, with or without `special` tokens, without clean-up."""
        if not responses:
            return []
        return self._tokenizer.batch_decode(
            responses,
            skip_special_tokens=not special,
            clean_up_tokenization_spaces=False,
            spaces_between_special_tokens=False,
        )


def _to_arrays(rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
    return [np.asarray(row, dtype=np.int64) for row in rows]
