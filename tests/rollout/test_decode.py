"""Decoding: samples match the model and do not depend on the batch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from host_reads import HostReads
from transformers import GenerationConfig, StopStringCriteria

from ippo_cli.rollout import continuous_batching, kv_cache, prompt_queue
from ippo_cli.rollout import decode as decoding
from ippo_cli.rollout.continuous_batching import ContinuousBatching
from ippo_cli.rollout.decode import stop_ids
from ippo_cli.rollout.decode_state import DecodeHooks, DecodeRows, DecodeState
from ippo_cli.rollout.kv_cache import KVCacheGroup
from ippo_cli.rollout.sampling import Sampling
from ippo_cli.rollout.static_batching import Recompute, StaticBatching
from ippo_cli.types import Completion

FILTERED = {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.3}


@pytest.fixture(autouse=True, params=["groups", "slots"])
def is_in_slots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Every test decodes in groups, as a CPU does, and in fixed slots, as a GPU does."""
    if request.param == "slots":
        monkeypatch.setattr(decoding, "uses_slots", lambda _: True)
    return request.param == "slots"


def same(found: Any, expected: Any) -> None:
    assert torch.equal(found.response_ids, expected.response_ids)
    assert torch.equal(found.response_mask, expected.response_mask)
    assert torch.equal(found.finished, expected.finished)
    assert found.texts == expected.texts
    torch.testing.assert_close(found.logprobs, expected.logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.behavior_logprobs, expected.behavior_logprobs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_match_teacher_forcing(asked: Any, llama: Any, temperature: float) -> None:
    found = asked.decoded(llama, temperature=temperature)
    assert found.response_mask.sum() > 100
    expected = asked.teacher_forced(llama, found, temperature)
    torch.testing.assert_close(found.logprobs, expected, atol=1e-5, rtol=0)
    assert all(completion.behavior_logprobs is completion.logprobs for completion in found.completions)


@pytest.mark.parametrize("sampling", [{}, FILTERED], ids=["plain", "filtered"])
def test_samples_independent_of_batch_size(asked: Any, llama: Any, sampling: dict[str, Any]) -> None:
    expected = asked.decoded(llama, batch_size=1, **sampling)
    assert len(set(expected.response_mask.sum(dim=1).tolist())) > 4
    for batch_size in (3, 8, 12, 100):
        same(asked.decoded(llama, batch_size=batch_size, **sampling), expected)


def test_samples_independent_of_other_rows(asked: Any, llama: Any) -> None:
    together = asked.decoded(llama)
    for row in (0, 5, 11):
        alone = asked.decoded(llama, rows=slice(row, row + 1))
        result = together.response_mask[row]
        assert alone.response_ids[0].tolist() == together.response_ids[row][result].tolist()
        assert alone.texts[0] == together.texts[row]


def test_samples_independent_of_internal_settings(asked: Any, llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = asked.decoded(llama, batch_size=12)
    monkeypatch.setattr(kv_cache, "COLUMNS_AHEAD", 2)
    monkeypatch.setattr(prompt_queue, "MAX_PREFILL_TOKENS", 10)
    for groups, share in ((1, 0.0), (2, 0.2), (20, 0.0), (3, 1.0)):
        monkeypatch.setattr(continuous_batching, "GROUPS_ON_CPU", groups)
        monkeypatch.setattr(prompt_queue, "REFILL_FRACTION", share)
        same(asked.decoded(llama, batch_size=4), expected)


@pytest.mark.parametrize("is_in_slots", ["groups"], indirect=True)
@pytest.mark.parametrize("way", [ContinuousBatching, StaticBatching, Recompute])
@pytest.mark.parametrize("prompt_tokens", [8192, 10])
def test_equal_prompts_have_independent_samples(
    asked: Any, llama: Any, monkeypatch: pytest.MonkeyPatch, way: Any, prompt_tokens: int
) -> None:
    repeated = of_rows(asked, [0, 0, 4, 0, 1, 4, 5, 5, 0])
    expected = repeated.decoded(llama, batch_size=1)
    monkeypatch.setattr(decoding, "model_runner_for", way)
    monkeypatch.setattr(prompt_queue, "MAX_PREFILL_TOKENS", prompt_tokens)
    for batch_size in (2, 4, 9):
        same(repeated.decoded(llama, batch_size=batch_size), expected)


@pytest.mark.parametrize(("prompt_tokens", "shapes"), [(8192, [(4, 9)]), (20, [(2, 9), (2, 2)]), (8, [(1, 9), (1, 9)])])
def test_equal_prompts_prefilled_once(
    asked: Any, llama: Any, monkeypatch: pytest.MonkeyPatch, prompt_tokens: int, shapes: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(prompt_queue, "MAX_PREFILL_TOKENS", prompt_tokens)
    repeated, read = of_rows(asked, [0, 0, 4, 0, 1, 4, 5, 5, 0]), []
    repeated.decoded(llama, max_new_tokens=1)  # exclude the one-time tests of the model
    llama.register_forward_pre_hook(lambda *given: read.append(tuple(given[2]["input_ids"].shape)), with_kwargs=True)
    repeated.decoded(llama, batch_size=9, max_new_tokens=1)
    assert read[: len(shapes)] == shapes


@pytest.mark.parametrize("is_in_slots", ["groups"], indirect=True)
@pytest.mark.parametrize("way", [StaticBatching, Recompute])
def test_prefill_limit_without_prompt_copies(asked: Any, llama: Any, monkeypatch: pytest.MonkeyPatch, way: Any) -> None:
    monkeypatch.setattr(decoding, "model_runner_for", way)
    monkeypatch.setattr(prompt_queue, "MAX_PREFILL_TOKENS", 18)
    repeated, read = of_rows(asked, [0] * 5), []
    llama.register_forward_pre_hook(lambda *given: read.append(tuple(given[2]["input_ids"].shape)), with_kwargs=True)
    repeated.decoded(llama, batch_size=9, max_new_tokens=1)
    assert read == [(2, 9), (2, 9), (1, 9)]


def of_rows(asked: Any, rows: list[int]) -> Any:
    return replace(asked, ids=asked.ids[rows], mask=asked.mask[rows])


def test_greedy_decoding_matches_generate(asked: Any, llama: Any) -> None:
    found = asked.decoded(llama, greedy=True, temperature=0.0)
    settings = GenerationConfig(do_sample=False, max_new_tokens=20, eos_token_id=1, pad_token_id=0)
    expected = llama.generate(asked.ids, attention_mask=asked.mask.long(), generation_config=settings)
    expected = expected[:, asked.ids.shape[1] :]
    assert found.response_ids.tolist() == expected[:, : found.response_ids.shape[1]].tolist()
    torch.testing.assert_close(found.logprobs, asked.teacher_forced(llama, found), atol=1e-5, rtol=0)


def test_masks_include_stop_token(asked: Any, llama: Any) -> None:
    found = asked.decoded(llama)
    lengths = found.response_mask.sum(dim=1)
    assert 0 < found.finished.sum() < len(lengths)
    for row, length in enumerate(lengths.tolist()):
        assert found.response_mask[row, :length].all()
        result, rest = found.response_ids[row, :length], found.response_ids[row, length:]
        assert (result == 1).nonzero().flatten().tolist() == ([length - 1] if found.finished[row] else [])
        assert (rest == 0).all()
        assert found.finished[row] or length == 20
        assert (found.logprobs[row, :length] < 0).all()
        assert (found.logprobs[row, length:] == 0).all()


def test_repetition_penalty_ignores_padding(asked: Any, llama: Any) -> None:
    found = asked.decoded(llama, repetition_penalty=1.5, max_new_tokens=8)
    for row in range(len(asked.ids)):
        before = asked.ids[row][asked.mask[row]].tolist()
        for column, logits in enumerate(asked.logits(llama, found, row)):
            seen = torch.zeros_like(logits, dtype=torch.bool)
            seen[before] = True
            penalised = logits.where(~seen, torch.where(logits > 0, logits / 1.5, logits * 1.5))
            token = int(found.response_ids[row, column])
            expected = torch.log_softmax(penalised, dim=0)[token]
            torch.testing.assert_close(found.behavior_logprobs[row, column], expected, atol=1e-5, rtol=0)
            before.append(token)


def test_row_truncated_at_context_limit(asked: Any, llama: Any) -> None:
    free, found = asked.decoded(llama), asked.decoded(llama, context_limit=8)
    room = 8 - asked.mask.sum(dim=1)
    assert room.min() < 0 < room.max()
    expected = torch.minimum(free.response_mask.sum(dim=1), room).clamp(min=0)
    assert torch.equal(found.response_mask.sum(dim=1), expected)
    assert torch.equal(found.finished, free.finished & (free.response_mask.sum(dim=1) <= room))
    for row in (room <= 0).nonzero().flatten().tolist():
        assert found.texts[row] == ""
    width = found.response_ids.shape[1]
    assert torch.equal(found.response_ids, (free.response_ids[:, :width] * found.response_mask))


def test_no_room_gives_empty_column(asked: Any, llama: Any) -> None:
    found = asked.decoded(llama, context_limit=1)
    assert found.response_ids.shape == (12, 1)
    assert not found.response_mask.any()
    assert not found.finished.any()


def test_no_stop_token_before_minimum_length(asked: Any, llama: Any) -> None:
    free, found = asked.decoded(llama), asked.decoded(llama, min_new_tokens=6)
    assert free.response_mask.sum(dim=1).min() < 6
    assert found.response_mask.sum(dim=1).min() > 6
    assert (found.response_ids == 1).any()
    torch.testing.assert_close(found.logprobs, asked.teacher_forced(llama, found), atol=1e-5, rtol=0)
    early = torch.zeros_like(found.response_mask)
    early[:, :6] = True
    assert (found.behavior_logprobs > found.logprobs)[early & found.response_mask].all()
    later = ~early & found.response_mask
    torch.testing.assert_close(found.behavior_logprobs[later], found.logprobs[later], atol=1e-6, rtol=0)


def test_row_ends_at_stop_string(asked: Any, llama: Any) -> None:
    free = asked.decoded(llama)
    long = [text for text in free.texts if len(text) > 6]
    stops = (long[0][3:5], long[1][2], "never said")
    found = asked.decoded(llama, stop_strings=stops)
    assert sum(text.endswith(stops) for text in found.texts) >= 2
    for row, text in enumerate(free.texts):
        ends = [place + len(stop) for stop in stops if (place := text.find(stop)) >= 0]
        assert found.texts[row] == (text[: min(ends)] if ends else text)
        assert found.finished[row] == (bool(ends) or bool(free.finished[row]))
        length = int(found.response_mask[row].sum())
        assert found.response_ids[row, :length].tolist() == free.response_ids[row, :length].tolist()
        if ends:
            one_less = asked.tokenizer.decode(found.response_ids[row, : length - 1], skip_special_tokens=True)
            assert not any(stop in one_less for stop in stops)
        else:
            assert length == free.response_mask[row].sum()


def test_stop_string_of_many_bytes() -> None:
    class Bytes:
        """A tokenizer with a token for each byte."""

        def batch_decode(self, responses: list[list[int]], **_: Any) -> list[str]:
            return [bytes(ids).decode(errors="replace") for ids in responses]

    stop = "漢字漢字漢字"
    state = DecodeState(
        DecodeRows(prompts=[[0]], noise=None),
        limits=np.array([64]),
        sampling=Sampling(max_new_tokens=64, greedy=True, stop_strings=(stop,)),
        stop_ids=(),
        tokenizer=Bytes(),  # type: ignore[arg-type]
        device=torch.device("cpu"),
    )
    responses = [list(f"a{text}".encode()) for text in (stop, stop[:-1])]
    assert [bool(state.find_stop_strings([0], [response])[0]) for response in responses] == [True, False]


@pytest.mark.parametrize("before", ["", "letter"])
def test_special_token_as_stop_string(asked: Any, llama: Any, before: str) -> None:
    special = asked.tokenizer.convert_ids_to_tokens(2)
    assert special in asked.tokenizer.all_special_tokens
    free = asked.decoded(llama)
    places = [(row, int(at)) for row, ids in enumerate(free.response_ids) for at in (ids == 2).nonzero().flatten()]
    row, at = next((row, at) for row, at in places if at and free.response_ids[row, at - 1] > 2)
    letter = asked.tokenizer.convert_ids_to_tokens(int(free.response_ids[row, at - 1])) if before else ""
    stop = letter + special
    found = asked.decoded(llama, stop_strings=(stop,))
    assert found.response_ids[row, at] == 2
    assert int(found.response_mask[row].sum()) == at + 1
    assert found.finished[row]
    stops = StopStringCriteria(asked.tokenizer, [stop])
    for ids, mask, finished in zip(found.response_ids, found.response_mask, found.finished, strict=True):
        result = ids[mask]
        reached = [bool(stops(result[None, : end + 1], torch.empty(0))) for end in range(len(result))]
        assert not any(reached[:-1])
        assert bool(finished) == (reached[-1] or int(result[-1]) == 1)
    assert special not in "".join(found.texts)


def test_stop_string_in_prompt_ignored(asked: Any, llama: Any) -> None:
    free = asked.decoded(llama, rows=slice(0, 1))
    prompt, start = asked.tokenizer.decode(asked.ids[0][asked.mask[0]]), free.texts[0][:1]
    found = asked.decoded(llama, rows=slice(0, 1), stop_strings=(prompt, prompt[-1] + start))
    assert found.texts == free.texts


def test_texts_match_tokens(asked: Any, llama: Any) -> None:
    found = asked.decoded(llama)
    for row, mask in enumerate(found.response_mask):
        ids = found.response_ids[row][mask]
        assert found.texts[row] == asked.tokenizer.decode(ids, skip_special_tokens=True)
        assert len(found.texts[row]) == (ids > 2).sum()


def test_generation_config_only_sets_stop_tokens(asked: Any, llama: Any) -> None:
    expected = asked.decoded(llama)
    llama.generation_config = GenerationConfig(
        do_sample=False,
        temperature=0.1,
        top_k=1,
        top_p=0.1,
        repetition_penalty=9.0,
        max_new_tokens=2,
        min_new_tokens=20,
        bad_words_ids=[[5]],
        forced_eos_token_id=9,
    )
    same(asked.decoded(llama), expected)


def test_stop_tokens_are_special_tokens(asked: Any, llama: Any) -> None:
    assert stop_ids(llama, asked.tokenizer) == (1,)
    llama.generation_config.eos_token_id = [1, 2]
    assert stop_ids(llama, asked.tokenizer) == (1, 2)
    llama.generation_config.eos_token_id = None
    llama.config.eos_token_id = 7  # a letter: a default that does not fit this tokenizer
    assert stop_ids(llama, asked.tokenizer) == (1,)
    llama.config.eos_token_id = [0, 7]
    assert stop_ids(llama, asked.tokenizer) == (0, 1)


def test_logprobs_usable_in_loss(asked: Any, llama: Any) -> None:
    weight = torch.ones((), requires_grad=True)
    found = asked.decoded(llama, top_p=0.9)
    (weight * (found.logprobs - found.behavior_logprobs)).exp().sum().backward()
    assert weight.grad is not None
    logits = llama(input_ids=found.response_ids).logits  # the model remains trainable
    logits.sum().backward()


def test_poll_receives_finished_rows(asked: Any, llama: Any) -> None:
    result: list[tuple[int, int]] = []
    hooks = DecodeHooks(poll=lambda done, total: result.append((done, total)))
    found = asked.decoded(llama, batch_size=12, hooks=hooks)
    lengths = found.response_mask.sum(dim=1)
    assert result == [(int((lengths <= tokens).sum()), 12) for tokens in range(1, int(lengths.max()) + 1)]
    result.clear()
    asked.decoded(llama, batch_size=4, hooks=hooks)
    assert result == sorted(result)
    assert result[-1] == (12, 12)


def test_interrupted_decode_restores_model(asked: Any, llama: Any) -> None:
    expected = asked.decoded(llama)

    def interrupt(done: int, total: int) -> None:
        if done >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asked.decoded(llama, hooks=DecodeHooks(poll=interrupt))
    assert llama.config._attn_implementation == "sdpa"
    same(asked.decoded(llama), expected)
    torch.testing.assert_close(expected.logprobs, asked.teacher_forced(llama, expected), atol=1e-5, rtol=0)


def test_dropout_must_be_off(asked: Any, llama: Any) -> None:
    with pytest.raises(AssertionError, match="dropout"):
        asked.decoded(llama.train())


def test_nonfinite_logits_rejected(asked: Any, llama: Any) -> None:
    asked.decoded(llama)
    with torch.no_grad():
        llama.lm_head.weight[5, 0] = torch.nan
    for greedy in (False, True):
        with pytest.raises(FloatingPointError, match="not numbers"):
            asked.decoded(llama, greedy=greedy)


def test_empty_prompt_rejected(asked: Any, llama: Any) -> None:
    asked.mask[4] = False
    with pytest.raises(ValueError, match="prompt 4 has no tokens"):
        asked.decoded(llama)


def test_no_prompts(asked: Any, llama: Any) -> None:
    found = asked.decoded(llama, rows=slice(0, 0))
    assert found.response_ids.shape == (0, 1)
    assert found.texts == []


def test_on_finished_receives_completions(asked: Any, llama: Any) -> None:
    result: dict[int, Completion] = {}
    counts: list[int] = []

    def on_finished(rows: list[int], completions: list[Completion]) -> None:
        assert not result.keys() & set(rows)
        result.update(zip(rows, completions, strict=True))
        counts.append(len(rows))

    expected = asked.decoded(llama, batch_size=5, context_limit=28, top_k=20)
    found = asked.decoded(llama, batch_size=5, context_limit=28, top_k=20, hooks=DecodeHooks(on_finished=on_finished))
    same(found, expected)
    assert all(result[row] is completion for row, completion in enumerate(found.completions))
    assert len(counts) > 4, "at different times"


@pytest.mark.parametrize("sampling", [{}, FILTERED], ids=["plain", "filtered"])
def test_host_reads_per_token(asked: Any, llama: Any, is_in_slots: bool, sampling: dict[str, Any]) -> None:
    def reads(tokens: int) -> HostReads:
        with HostReads() as found:
            asked.decoded(llama, batch_size=12, max_new_tokens=tokens, min_new_tokens=tokens, **sampling)
        return found

    reads(1)  # the first decoding tests the model
    few, many = reads(12), reads(24)
    assert many.count - few.count == (0 if is_in_slots else 12), "a step in slots is read late, by its copy"
    assert many.copies - few.copies <= 24, "the library's rotary embedding, and the rows that may not end yet"


@pytest.mark.parametrize("layers", [1, 4])
def test_copies_of_finished_rows_independent_of_layers(layers: int) -> None:
    group = KVCacheGroup(np.array([0, 1, 0, 2]), 4, 8)
    for layer in range(layers):
        states = torch.randn(4, 2, 4, 3)
        group.store(layer, states, states)
    with HostReads() as found:
        group.keep(np.array([False, True, True, True]))
    assert (found.count, found.copies) == (0, 3)


@pytest.mark.parametrize("window", [None, 21])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_aligned_for_gpu_attention(dtype: torch.dtype, window: int | None) -> None:
    """Torch copies a mask with unaligned strides itself, but not one that only starts at an unaligned address."""
    group = KVCacheGroup(np.array([3, 5, 9]), 16, 128)
    states = torch.randn(3, 2, 16, 8, dtype=dtype)
    group.store(0, states, states)
    group.update_mask()
    for used in range(17, 100):
        group.advance()
        keys, _, mask = group.write(0, states[:, :, :1], states[:, :, :1], window)
        assert mask is not None
        first = used - keys.shape[2]
        expected = torch.where(torch.arange(first, used) < torch.tensor([[3], [5], [9]]), -math.inf, 0.0)
        torch.testing.assert_close(mask[:, 0, 0].float(), expected)
        is_copied = any(stride % 16 for stride in mask.stride()[:-1])
        assert is_copied or mask.data_ptr() % 16 == 0
