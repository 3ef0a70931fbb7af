"""Batched sampling from any causal language model: rows leave when they finish and waiting prompts take their place."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ippo_cli.rollout.continuous_batching import language_model, text_config
from ippo_cli.rollout.decode_state import DecodeState
from ippo_cli.rollout.model_runner import ModelRunner, model_runner_for
from ippo_cli.rollout.sampling import Sampling

REFILL_SHARE = 0.25
"""Waiting prompts are read when this share of the batch is free: a read costs about a step, a free place little."""
PROMPT_TOKENS = 8192
"""Prompt tokens, padding included, that one forward reads at most."""

Poll = Callable[[int, int], None]  # finished rows, all rows
AnyRank = Callable[[bool], bool]
Finished = Callable[[list[int], list[str]], None]  # rows, and what they say


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The responses, in the order of the prompts."""

    response_ids: Tensor  # [B, R] int64, right-padded; R is the longest response, at least 1
    response_mask: Tensor  # [B, R] bool: every sampled token, the stop token included
    logprobs: Tensor  # [B, R] float32, tempered and unfiltered; 0 off the mask
    behavior_logprobs: Tensor  # [B, R] float32, under what was sampled from; the same tensor when no filter is on
    finished: Tensor  # [B] bool: ended by a stop token or stop string; False means a limit was reached
    texts: list[str]  # B: exactly what the tokens say, a stop string included, special tokens left out


@torch.no_grad()  # not inference_mode: weights gathered inside it could not be trained after
def decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    sampling: Sampling,
    *,
    uniforms: Tensor | None,
    batch_size: int,
    context_limit: int,
    poll: Poll | None = None,
    finished: Finished | None = None,
    any_rank: AnyRank | None = None,
) -> Decoded:
    """One response for each left-padded prompt `[B, P]`; at most `batch_size` rows are decoded together.

    Token t of row b is a function of the model, the prompt and `uniforms[b, t]`: the batch size and the other rows
    change it by rounding alone, which in bf16 is enough for another token now and then. `uniforms` is
    `[B, >= max_new_tokens]`, or `None` for greedy decoding. A row also ends, unfinished, when prompt and response
    reach `context_limit` tokens; a prompt that long gets an empty response.

    `poll(finished rows, B)` is called after every token and may raise. `finished(rows, texts)` is told of rows when
    they end; those whose prompt leaves no room are not told of. `any_rank` tells whether a flag is true on any rank;
    with it all ranks make the same sequence of forwards, as layer-by-layer gathering of weights demands.

    Of the model's `generation_config` nothing but stop tokens is used (`stop_ids`). Raises `FloatingPointError` if the
    model's logits are not numbers.
    """
    assert not model.training, "dropout must be off"
    prompt_mask = prompt_mask.bool()
    lengths = prompt_mask.sum(dim=1).cpu().numpy()
    if len(lengths) and lengths.min() == 0:
        raise ValueError(f"prompt {int(lengths.argmin())} has no tokens; a response needs something to follow")
    limits = np.minimum(sampling.max_new_tokens, context_limit - lengths)
    state = DecodeState((prompt_ids, prompt_mask), limits, sampling, uniforms, stop_ids(model, tokenizer), tokenizer)
    runner = model_runner_for(model)
    waiting = Waiting(prompt_ids, lengths, np.flatnonzero(limits > 0))
    with runner.session():
        _run(runner, state, waiting, batch_size, poll, finished, any_rank or bool)
    return _decoded(state, tokenizer)


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens that end a response.

    The tokenizer's end of sequence, and what the model's config and generation config call so (chat models list
    several there), if the tokenizer knows it as a special token: a config's default must not stop at a plain word.
    """
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    special.update(tokenizer.all_special_ids)
    found: set[int] = {tokenizer.eos_token_id} if isinstance(tokenizer.eos_token_id, int) else set()
    for config in (text_config(model), language_model(model).generation_config):
        named = getattr(config, "eos_token_id", None)
        found.update(special.intersection([named] if isinstance(named, int) else named or []))
    return tuple(sorted(found))


class Waiting:
    """Prompts not read yet, longest first: what is read together then needs little padding."""

    def __init__(self, prompt_ids: Tensor, lengths: np.ndarray, rows: np.ndarray) -> None:
        self._prompt_ids, self._lengths = prompt_ids, lengths
        self._rows = rows[np.argsort(-lengths[rows], kind="stable")]

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, count: int) -> tuple[np.ndarray, Tensor, np.ndarray]:
        """Up to `count` rows that fit one forward: their places, left-padded prompts `[k, P]` and lengths."""
        longest = int(self._lengths[self._rows[0]])
        rows = self._rows[: min(count, max(1, PROMPT_TOKENS // longest))]
        self._rows = self._rows[len(rows) :]
        places = torch.from_numpy(rows).to(self._prompt_ids.device)
        return rows, self._prompt_ids[places, -longest:], self._lengths[rows]


def _run(
    runner: ModelRunner,
    state: DecodeState,
    waiting: Waiting,
    batch_size: int,
    poll: Poll | None,
    finished: Finished | None,
    any_rank: AnyRank,
) -> None:
    """Turns of: one token for every live row, prompts into free places, sampling for all of them at once."""
    total = len(state.lengths)
    while True:
        live = len(state.rows)
        logits, joined, busy = [], [], False
        if any_rank(live > 0):
            busy = True
            if live:
                logits.append(runner.decode(state.tokens))
            else:
                runner.dummy_forward()
        places = _places(runner, live, len(waiting), batch_size)
        while any_rank(places > 0):
            busy = True
            if places:
                rows, ids, lengths = waiting.take(places)
                logits.append(runner.prefill(ids, lengths))
                joined.append(rows)
                places = min(places - len(rows), len(waiting)) if runner.joins else 0
            else:
                runner.dummy_forward()
        if not busy:
            return
        if logits:
            alive = state.record(torch.cat(logits), np.concatenate([*joined, state.rows[:0]]))
            if not alive.all():
                if finished is not None:
                    ended = state.rows[~alive]
                    finished(ended.tolist(), state.texts(ended))
                state.keep(runner.keep(alive))
        if poll is not None:
            poll(total - len(waiting) - len(state.rows), total)


def _places(runner: ModelRunner, live: int, waiting: int, batch_size: int) -> int:
    """How many waiting prompts to read now."""
    free = min(batch_size - live, waiting)
    worth = not live or (runner.joins and free >= min(waiting, math.ceil(REFILL_SHARE * batch_size)))
    return free if worth else 0


def _decoded(state: DecodeState, tokenizer: PreTrainedTokenizerBase) -> Decoded:
    device = state.ids.device
    lengths = torch.from_numpy(state.lengths).to(device)
    width = max(1, int(state.lengths.max(initial=0)))
    mask = torch.arange(width, device=device) < lengths[:, None]
    logprobs = state.logprobs[:, :width].clone()
    filtered = state.behavior_logprobs is not state.logprobs
    behavior = state.behavior_logprobs[:, :width].clone() if filtered else logprobs
    if not torch.isfinite(logprobs).all():
        raise FloatingPointError("the model's logits are not numbers: tokens cannot be sampled from them")
    texts = state.texts(np.arange(len(state.lengths)))
    padding = tokenizer.pad_token_id if isinstance(tokenizer.pad_token_id, int) else 0
    return Decoded(
        response_ids=state.ids[:, :width].masked_fill(~mask, padding),
        response_mask=mask,
        logprobs=logprobs,
        behavior_logprobs=behavior,
        finished=torch.from_numpy(state.finished).to(device),
        texts=texts,
    )
