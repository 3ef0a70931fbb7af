"""Batched sampling from any causal language model: finished rows leave the batch and waiting prompts join it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ippo_cli.rollout.continuous_batching import ContinuousBatching, language_model, text_config
from ippo_cli.rollout.decode_state import DecodeState
from ippo_cli.rollout.fixed_slots import FixedSlots
from ippo_cli.rollout.invariant_slots import InvariantSlots, check_invariance
from ippo_cli.rollout.model_runner import ModelRunner, can_resume, model_runner_for, uses_slots
from ippo_cli.rollout.noise import TokenNoise
from ippo_cli.rollout.packed_linears import pack_linears
from ippo_cli.rollout.prefix_cache import PrefixCache
from ippo_cli.rollout.prompt_queue import PrefixCacheSession, PromptQueue, prefill_count
from ippo_cli.rollout.sampling import Sampling
from ippo_cli.rollout.slot_decode import OnRowsFinished, Poll, SlotDecoder
from ippo_cli.types import Completion

AnyRank = Callable[[bool], bool]
SelectReaders = Callable[[np.ndarray], None]  # selects the policies of the next forward's rows


@torch.no_grad()  # not inference_mode: weights gathered inside it could not be trained later
def decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    noise: TokenNoise | None,
    batch_size: int,
    context_limit: int,
    max_new_tokens: Sequence[int] | None = None,
    stop_strings: Sequence[tuple[str, ...]] | None = None,
    responses: Sequence[Sequence[int]] | None = None,
    poll: Poll | None = None,
    on_finished: OnRowsFinished | None = None,
    any_rank: AnyRank | None = None,
    prefixes: PrefixCache | None = None,
    keys: Sequence[Hashable] | None = None,
    readers: np.ndarray | None = None,
    select: SelectReaders | None = None,
    batch_invariant: bool = False,
) -> list[Completion]:
    """One response for each prompt, in order; at most `batch_size` rows are decoded together.

    Token t of row b is a function of the model, the prompt and the `noise` of (b, t): batch size and other rows change
    it only by rounding, which in bf16 occasionally selects another token. `noise` is `[B, max_new_tokens]`, or `None`
    for greedy decoding. A row also ends, unfinished, when prompt and response reach `context_limit` tokens; a
    prompt of that length gets an empty response. Equal prompts are prefilled once if their rows start together.

    `max_new_tokens` and `stop_strings` are those of each row: a limit below that of `sampling`, and stop strings beside
    its own.

    `responses` are the first tokens of each row's response, which are given: limits count them, and their
    log-probabilities are 0.

    With `prefixes` every finished row is stored under its key of `keys`, and a later prompt of the same key reads only
    the tokens after the stored ones. This changes samples only by rounding; models that do not support it read every
    prompt whole.

    `poll(finished rows, B)` is called after every token and may raise. `on_finished(rows, completions)` receives rows
    when they end, without rows that have no room. `any_rank` returns whether a flag is true on any rank; with
    it all ranks make the same sequence of forwards, as layer-by-layer gathering of weights requires.

    `readers` `[B]` is for models with several policies (adapters): the policy of each row. `select` receives those of
    the next rows before every forward.

    With `batch_invariant` no bit of a row depends on other rows or on `batch_size`, a multiple of 32: prompts are read
    one by one and whole, and `prefixes` are ignored. Not with `any_rank` or `select`. Raises `ConfigError` for models
    that do not support it.

    Only the stop tokens of the model's `generation_config` are used (`stop_ids`). Raises `FloatingPointError` if the
    model's logits are not finite.
    """
    assert not model.training, "dropout must be off"
    ids = [np.asarray(prompt, dtype=np.int64) for prompt in prompts]
    lengths = np.array([len(prompt) for prompt in ids], dtype=np.int64)
    if len(lengths) and lengths.min() == 0:
        raise ValueError(f"prompt {int(lengths.argmin())} has no tokens; a prompt needs at least one")
    first_tokens = None if responses is None else [np.asarray(response, dtype=np.int64) for response in responses]
    limits = np.minimum(sampling.max_new_tokens, context_limit - lengths)
    if max_new_tokens is not None:
        limits = np.minimum(limits, max_new_tokens)
    device = next(model.parameters()).device
    state = DecodeState(
        ids, limits, sampling, noise, stop_ids(model, tokenizer), stop_strings, tokenizer, device, first_tokens
    )
    if first_tokens is not None:
        ids = [np.concatenate(parts) for parts in zip(ids, first_tokens, strict=True)]  # what is read first
    rows = np.flatnonzero(limits > state.lengths)
    # Ranks that gather weights layer by layer meet before every forward; adapters of several policies differ by row.
    can_use_slots = len(rows) > 0 and any_rank is None and select is None
    if batch_invariant and len(rows):
        assert can_use_slots
        check_invariance(model)
    if can_use_slots and (batch_invariant or uses_slots(model)):
        slots = InvariantSlots if batch_invariant else FixedSlots
        runner = slots(model, min(batch_size, len(rows)), int((lengths + limits)[rows].max()))
    else:
        runner = model_runner_for(model)
    turns = None
    if prefixes is not None and not batch_invariant:
        assert keys is not None
        assert len(keys) == len(ids)
        if isinstance(runner, ContinuousBatching) and can_resume(model):
            turns = PrefixCacheSession(runner, prefixes, keys)
    known = {} if turns is None else turns.find_prefixes(ids, rows)
    if readers is None:
        readers = np.zeros(len(ids), dtype=np.int64)
    waiting = PromptQueue(ids, rows, readers if runner.can_copy else None, known, device)
    try:
        num_steps = 0 if batch_invariant else int((limits - state.lengths)[rows].max(initial=0))
        with pack_linears(model, min(batch_size, len(rows)), num_steps), runner.session(sampling.max_new_tokens):
            if isinstance(runner, FixedSlots):
                decoder = SlotDecoder(runner, state, waiting, turns, poll, on_finished)
                completions = decoder.run(type(language_model(model)).__name__)
            else:
                completions = _decode_loop(
                    runner,
                    state,
                    waiting,
                    turns,
                    batch_size,
                    poll,
                    on_finished,
                    any_rank or bool,
                    readers,
                    select or _select_nothing,
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
    poll: Poll | None,
    on_finished: OnRowsFinished | None,
    any_rank: AnyRank,
    readers: np.ndarray,
    select: SelectReaders,
) -> dict[int, Completion]:
    """Repeat: one token for every live row, prefill of free slots, sampling for all of them at once.

    Returns the completions that `on_finished` received, by row.
    """
    total = len(state.lengths)
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
                if on_finished is not None:
                    ended, completions = state.rows[~alive], state.completions(state.rows[~alive])
                    reported.update(zip(ended.tolist(), completions, strict=True))
                    on_finished(ended.tolist(), completions)
                if turns is not None:
                    turns.park(state, ~alive)
                state.keep(runner.keep(alive))
        if poll is not None:
            poll(total - len(waiting) - len(state.rows), total)


def _run_dummy_forward(runner: ModelRunner, select: SelectReaders) -> None:
    """Take part in another rank's forward."""
    select(np.zeros(1, dtype=np.int64))
    runner.dummy_forward()


def _select_nothing(readers: np.ndarray) -> None:
    """No-op for a model with a single policy."""
