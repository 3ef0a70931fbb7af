"""Batched sampling from any causal language model: finished rows leave the batch and waiting prompts join it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ippo_cli.rollout.continuous_batching import ContinuousBatching, language_model, text_config
from ippo_cli.rollout.decode_state import DecodeHooks, DecodeRows, DecodeState
from ippo_cli.rollout.fixed_slots import FixedSlots
from ippo_cli.rollout.invariant_slots import InvariantSlots, check_invariance
from ippo_cli.rollout.model_runner import ModelRunner, can_resume, model_runner_for, uses_slots
from ippo_cli.rollout.packed_linears import pack_linears
from ippo_cli.rollout.prompt_queue import PrefixCacheSession, PromptQueue, prefill_count
from ippo_cli.rollout.sampling import Sampling
from ippo_cli.rollout.slot_decode import SlotDecoder
from ippo_cli.types import Completion

SelectReaders = Callable[[np.ndarray], None]  # selects the policies of the next forward's rows
NO_HOOKS = DecodeHooks()


@torch.no_grad()  # not inference_mode: weights gathered inside it could not be trained later
def decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: DecodeRows,
    sampling: Sampling,
    *,
    batch_size: int,
    context_limit: int,
    hooks: DecodeHooks = NO_HOOKS,
    batch_invariant: bool = False,
) -> list[Completion]:
    """One response for each prompt, in order; at most `batch_size` rows are decoded together.

    Token t of row b is a function of the model, the prompt and the noise of (b, t): batch size and other rows change it
    only by rounding, which in bf16 occasionally selects another token. A row also ends, unfinished, when prompt and
    response reach `context_limit` tokens; a prompt of that length gets an empty response. Equal prompts are prefilled
    once if their rows start together.

    With `batch_invariant` no bit of a row depends on other rows or on `batch_size`, a multiple of 32: prompts are read
    one by one and whole, and `prefixes` are ignored. Not with `any_rank` or `select`. Raises `ConfigError` for models
    that do not support it.

    Only the stop tokens of the model's `generation_config` are used (`stop_ids`). Raises `FloatingPointError` if the
    model's logits are not finite.
    """
    assert not model.training, "dropout must be off"
    limits = _response_limits(rows, sampling, context_limit)
    device = next(model.parameters()).device
    state = DecodeState(rows, limits, sampling, stop_ids(model, tokenizer), tokenizer, device)
    inputs, started = state.inputs, np.flatnonzero(limits > state.lengths)
    longest = int((limits + [len(prompt) for prompt in rows.prompts])[started].max(initial=0))
    size = min(batch_size, len(started))
    runner = _build_runner(model, hooks, size, longest, batch_invariant=batch_invariant)
    turns = None
    if rows.prefixes is not None and not batch_invariant:
        assert rows.keys is not None
        assert len(rows.keys) == len(inputs)
        if isinstance(runner, ContinuousBatching) and can_resume(model):
            turns = PrefixCacheSession(runner, rows.prefixes, rows.keys)
    known = {} if turns is None else turns.find_prefixes(inputs, started)
    readers = np.zeros(len(inputs), dtype=np.int64) if rows.readers is None else rows.readers
    waiting = PromptQueue(inputs, started, readers if runner.can_copy else None, known, device)
    try:
        steps = 0 if batch_invariant else int((limits - state.lengths)[started].max(initial=0))
        with pack_linears(model, size, steps), runner.session(sampling.max_new_tokens):
            if isinstance(runner, FixedSlots):
                decoder = SlotDecoder(runner, state, waiting, turns, hooks)
                completions = decoder.run(type(language_model(model)).__name__)
            else:
                completions = _decode_loop(runner, state, waiting, turns, batch_size, hooks, readers)
    finally:
        if turns is not None:
            turns.release(known.values())  # of rows that an interruption left waiting
    if not torch.isfinite(state.logprobs).all():
        raise FloatingPointError("the model's logits are not numbers: tokens cannot be sampled from them")
    left = np.array([row for row in range(len(inputs)) if row not in completions], dtype=np.int64)
    completions.update(zip(left.tolist(), state.completions(left), strict=True))
    return [completions[row] for row in range(len(inputs))]


def _build_runner(
    model: PreTrainedModel, hooks: DecodeHooks, size: int, longest: int, *, batch_invariant: bool
) -> ModelRunner:
    """The runner of `size` rows of up to `longest` tokens.

    Ranks that gather weights layer by layer meet before every forward, and adapters of several policies differ by row:
    both cannot use fixed slots.
    """
    can_use_slots = size > 0 and hooks.any_rank is None and hooks.select is None
    if batch_invariant and size:
        assert can_use_slots
        check_invariance(model)
    if can_use_slots and (batch_invariant or uses_slots(model)):
        return (InvariantSlots if batch_invariant else FixedSlots)(model, size, longest)
    return model_runner_for(model)


def _response_limits(rows: DecodeRows, sampling: Sampling, context_limit: int) -> np.ndarray:
    """The most tokens of each response, `[B]`. Raises `ValueError` for a prompt without tokens."""
    lengths = np.array([len(prompt) for prompt in rows.prompts], dtype=np.int64)
    if len(lengths) and lengths.min() == 0:
        raise ValueError(f"prompt {int(lengths.argmin())} has no tokens; a prompt needs at least one")
    limits = np.minimum(sampling.max_new_tokens, context_limit - lengths)
    return limits if rows.max_new_tokens is None else np.minimum(limits, rows.max_new_tokens)


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens that end a response."""
    return collect_stop_ids(tokenizer, text_config(model), language_model(model).generation_config)


def collect_stop_ids(tokenizer: PreTrainedTokenizerBase, *configs: object) -> tuple[int, ...]:
    """The tokenizer's EOS token, and the EOS tokens of the model's config and generation config (chat models list
    several there) that the tokenizer has as special tokens: a config's default must not stop at an ordinary word.
    """
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    special.update(tokenizer.all_special_ids)
    ids: set[int] = {tokenizer.eos_token_id} if isinstance(tokenizer.eos_token_id, int) else set()
    for config in configs:
        named = getattr(config, "eos_token_id", None)
        ids.update(special.intersection([named] if isinstance(named, int) else named or []))
    return tuple(sorted(ids))


def _decode_loop(
    runner: ModelRunner,
    state: DecodeState,
    waiting: PromptQueue,
    turns: PrefixCacheSession | None,
    batch_size: int,
    hooks: DecodeHooks,
    readers: np.ndarray,
) -> dict[int, Completion]:
    """Repeat: one token for every live row, prefill of free slots, sampling for all of them at once.

    Returns the completions that `on_finished` received, by row.
    """
    total, any_rank, select = len(state.lengths), hooks.any_rank or bool, hooks.select or _select_nothing
    reported: dict[int, Completion] = {}
    while True:
        live = len(state.rows)
        logits, joined, busy = [], [], False
        if any_rank(live > 0):
            busy = True
            if live:
                select(readers[state.rows])
                logits.append(runner.decode(state.tokens))
            else:
                _run_dummy_forward(runner, select)
        places = prefill_count(live, len(waiting), batch_size, can_join=runner.can_join)
        while any_rank(places > 0):
            busy = True
            if places:
                new = waiting.pop_prefill(places)
                select(readers[new.source_rows])
                read = runner.prefill(new.ids, new.lengths, new.prompt_index) if turns is None else turns.prefill(new)
                logits.append(read)
                joined.append(new.rows)
                places = min(places - len(new.rows), len(waiting)) if runner.can_join else 0
            else:
                _run_dummy_forward(runner, select)
        if not busy:
            return reported
        if logits:
            alive = state.record(torch.cat(logits), np.concatenate([*joined, state.rows[:0]]))
            if not alive.all():
                if hooks.on_finished is not None:
                    ended, completions = state.rows[~alive], state.completions(state.rows[~alive])
                    reported.update(zip(ended.tolist(), completions, strict=True))
                    hooks.on_finished(ended.tolist(), completions)
                if turns is not None:
                    turns.park(state, ~alive)
                state.keep(runner.keep(alive))
        if hooks.poll is not None:
            hooks.poll(total - len(waiting) - len(state.rows), total)


def _run_dummy_forward(runner: ModelRunner, select: SelectReaders) -> None:
    """Take part in another rank's forward."""
    select(np.zeros(1, dtype=np.int64))
    runner.dummy_forward()


def _select_nothing(readers: np.ndarray) -> None:
    """No-op for a model with a single policy."""
