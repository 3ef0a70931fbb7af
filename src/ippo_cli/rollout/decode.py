"""Batched sampling from any causal language model: rows leave when they finish and waiting prompts take their place."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ippo_cli.rollout.continuous_batching import ContinuousBatching, language_model, text_config
from ippo_cli.rollout.decode_state import DecodeState
from ippo_cli.rollout.model_runner import ModelRunner, can_resume, model_runner_for
from ippo_cli.rollout.prefix_cache import Prefix, PrefixCache
from ippo_cli.rollout.sampling import Sampling
from ippo_cli.types import Completion

REFILL_SHARE = 0.25
"""Waiting prompts are read when this share of the batch is free: a read costs about a step, a free place little."""
PROMPT_TOKENS = 8192
"""Prompt tokens, padding included, that one forward reads at most."""

Poll = Callable[[int, int], None]  # finished rows, all rows
AnyRank = Callable[[bool], bool]
SelectRows = Callable[[np.ndarray | None], None]  # of the next forward; None: that of no row
Finished = Callable[[list[int], list[Completion]], None]  # rows, and what they say


@torch.no_grad()  # not inference_mode: weights gathered inside it could not be trained after
def decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    uniforms: Tensor | None,
    batch_size: int,
    context_limit: int,
    poll: Poll | None = None,
    on_finished: Finished | None = None,
    any_rank: AnyRank | None = None,
    prefixes: PrefixCache | None = None,
    keys: Sequence[Hashable] | None = None,
    select: SelectRows | None = None,
) -> list[Completion]:
    """One response for each prompt, in their order; at most `batch_size` rows are decoded together.

    Token t of row b is a function of the model, the prompt and `uniforms[b, t]`: the batch size and the other rows
    change it by rounding alone, which in bf16 is enough for another token now and then. `uniforms` is
    `[B, >= max_new_tokens]`, or `None` for greedy decoding. A row also ends, unfinished, when prompt and response
    reach `context_limit` tokens; a prompt that long gets an empty response.

    With `prefixes` every row is parked there when it ends, under its key of `keys`, and of a later prompt of the same
    key only what follows the tokens parked is read. It changes what is sampled by rounding alone; models whose state
    does not allow it read every prompt whole.

    `poll(finished rows, B)` is called after every token and may raise. `on_finished(rows, completions)` is told of rows
    when they end; those whose prompt leaves no room are not told of. `any_rank` tells whether a flag is true on any
    rank; with it all ranks make the same sequence of forwards, as layer-by-layer gathering of weights demands.

    `select` is told before every forward which rows it reads, for models that do not read all of them alike.

    Of the model's `generation_config` nothing but stop tokens is used (`stop_ids`). Raises `FloatingPointError` if the
    model's logits are not numbers.
    """
    assert not model.training, "dropout must be off"
    ids = [np.asarray(prompt, dtype=np.int64) for prompt in prompts]
    lengths = np.array([len(prompt) for prompt in ids], dtype=np.int64)
    if len(lengths) and lengths.min() == 0:
        raise ValueError(f"prompt {int(lengths.argmin())} has no tokens; a response needs something to follow")
    limits = np.minimum(sampling.max_new_tokens, context_limit - lengths)
    device = next(model.parameters()).device
    state = DecodeState(ids, limits, sampling, uniforms, stop_ids(model, tokenizer), tokenizer, device)
    runner, rows = model_runner_for(model), np.flatnonzero(limits > 0)
    turns = None
    if prefixes is not None:
        assert keys is not None
        assert len(keys) == len(ids)
        if isinstance(runner, ContinuousBatching) and can_resume(model):
            turns = EarlierTurns(runner, prefixes, keys)
    known = {} if turns is None else turns.known(ids, rows)
    waiting = Waiting(ids, rows, known, device)
    try:
        with runner.session(sampling.max_new_tokens):
            completions = _run(
                runner, state, waiting, turns, batch_size, poll, on_finished, any_rank or bool, select or _all_alike
            )
    finally:
        if turns is not None:
            turns.release(known.values())  # of rows that an interruption left waiting
    if not torch.isfinite(state.logprobs).all():
        raise FloatingPointError("the model's logits are not numbers: tokens cannot be sampled from them")
    left = np.array([row for row in range(len(ids)) if row not in completions], dtype=np.int64)
    completions.update(zip(left.tolist(), state.completions(left), strict=True))
    return [completions[row] for row in range(len(ids))]


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens that end a response.

    The tokenizer's end of sequence, and what the model's config and generation config call so (chat models list
    several there), if the tokenizer knows it as a special token: a config's default must not stop at a plain word.
    """
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    special.update(tokenizer.all_special_ids)
    ids: set[int] = {tokenizer.eos_token_id} if isinstance(tokenizer.eos_token_id, int) else set()
    for config in (text_config(model), language_model(model).generation_config):
        named = getattr(config, "eos_token_id", None)
        ids.update(special.intersection([named] if isinstance(named, int) else named or []))
    return tuple(sorted(ids))


class Waiting:
    """Prompts not read yet: whole ones first, the longest first. What is read together then needs little padding."""

    def __init__(
        self, prompts: Sequence[np.ndarray], rows: np.ndarray, known: dict[int, Prefix], device: torch.device
    ) -> None:
        self._prompts, self._known, self._device = prompts, known, device
        self._lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)  # tokens to read
        for row, prefix in known.items():
            self._lengths[row] -= prefix.length
        whole = np.array([row not in known for row in rows.tolist()], dtype=bool)
        order = np.argsort(-self._lengths[rows], kind="stable")
        self._rows = np.concatenate([rows[order][whole[order]], rows[order][~whole[order]]])
        self._num_whole = int(whole.sum())

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, count: int) -> tuple[np.ndarray, Tensor, np.ndarray, list[Prefix]]:
        """Up to `count` rows that fit one forward: their places, left-padded tokens to read `[k, P]`, how many these
        are, and what precedes them: nothing, or a prefix for each row."""
        longest = int(self._lengths[self._rows[0]])
        count = min(count, max(1, PROMPT_TOKENS // longest), self._num_whole or len(self._rows))
        rows, self._rows = self._rows[:count], self._rows[count:]
        self._num_whole = max(0, self._num_whole - count)
        lengths = self._lengths[rows]
        ids = np.zeros((len(rows), longest), dtype=np.int64)
        parts = [self._prompts[row][-length:] for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)]
        ids[np.arange(longest) >= longest - lengths[:, None]] = np.concatenate(parts)
        known = [self._known.pop(row) for row in rows.tolist() if row in self._known]
        return rows, torch.from_numpy(ids).to(self._device), lengths, known


class EarlierTurns:
    """What one decoding takes from the cache of earlier turns and leaves there for later ones."""

    def __init__(self, runner: ContinuousBatching, cache: PrefixCache, keys: Sequence[Hashable]) -> None:
        self._runner, self._cache, self._keys = runner, cache, keys

    def known(self, prompts: Sequence[np.ndarray], rows: np.ndarray) -> dict[int, Prefix]:
        """By row, what need not be read again."""
        prefixes = {row: self._cache.take(self._keys[row], prompts[row]) for row in rows.tolist()}
        return {row: prefix for row, prefix in prefixes.items() if prefix is not None}

    def read(self, ids: Tensor, lengths: np.ndarray, known: list[Prefix]) -> Tensor:
        """Reads prompts, or what follows what is known of them; logits `[k, V]` after each."""
        self._cache.read_tokens += int(lengths.sum())
        self._cache.reused_tokens += sum(prefix.length for prefix in known)
        if not known:
            return self._runner.prefill(ids, lengths)
        try:
            return self._runner.resume(ids, lengths, known)
        finally:
            self.release(known)

    def release(self, known: Iterable[Prefix]) -> None:
        """Says that these will not be read any more."""
        for prefix in known:
            self._cache.release(prefix)

    def park(self, state: DecodeState, ended: np.ndarray) -> None:
        """Keeps the keys and values of live rows `[n]` bool that have ended."""
        rows = state.rows[ended]
        self._cache.put([self._keys[row] for row in rows], state.tokens_read(rows), self._runner.park(ended))


def _run(
    runner: ModelRunner,
    state: DecodeState,
    waiting: Waiting,
    turns: EarlierTurns | None,
    batch_size: int,
    poll: Poll | None,
    on_finished: Finished | None,
    any_rank: AnyRank,
    select: SelectRows,
) -> dict[int, Completion]:
    """Rounds of: one token for every live row, prompts into free places, sampling for all of them at once.

    Returns the completions that `on_finished` was told of, by row.
    """
    total = len(state.lengths)
    told: dict[int, Completion] = {}
    while True:
        live = len(state.rows)
        logits, joined, busy = [], [], False
        if any_rank(live > 0):
            busy = True
            select(state.rows if live else None)
            if live:
                logits.append(runner.decode(state.tokens))
            else:
                runner.dummy_forward()
        places = _places(runner, live, len(waiting), batch_size)
        while any_rank(places > 0):
            busy = True
            if places:
                rows, ids, lengths, known = waiting.take(places)
                select(rows)
                logits.append(runner.prefill(ids, lengths) if turns is None else turns.read(ids, lengths, known))
                joined.append(rows)
                places = min(places - len(rows), len(waiting)) if runner.joins else 0
            else:
                select(None)
                runner.dummy_forward()
        if not busy:
            return told
        if logits:
            alive = state.record(torch.cat(logits), np.concatenate([*joined, state.rows[:0]]))
            if not alive.all():
                if on_finished is not None:
                    ended, completions = state.rows[~alive], state.completions(state.rows[~alive])
                    told.update(zip(ended.tolist(), completions, strict=True))
                    on_finished(ended.tolist(), completions)
                if turns is not None:
                    turns.park(state, ~alive)
                state.keep(runner.keep(alive))
        if poll is not None:
            poll(total - len(waiting) - len(state.rows), total)


def _all_alike(rows: np.ndarray | None) -> None:
    """Of a model that reads all rows alike."""


def _places(runner: ModelRunner, live: int, waiting: int, batch_size: int) -> int:
    """How many waiting prompts to read now."""
    free = min(batch_size - live, waiting)
    worth = not live or (runner.joins and free >= min(waiting, math.ceil(REFILL_SHARE * batch_size)))
    return free if worth else 0
