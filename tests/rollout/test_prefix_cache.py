"""Several turns: samples do not depend on the reuse of cached prefixes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from plain_sampling import PLAIN
from thread_ranks import AnyRank, on_ranks
from torch import Tensor
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config

from ippo_cli.rollout import continuous_batching, kv_cache, model_runner, prompt_queue
from ippo_cli.rollout.continuous_batching import ContinuousBatching
from ippo_cli.rollout.decode import decode
from ippo_cli.rollout.decode_state import DecodeHooks, DecodeRows
from ippo_cli.rollout.kv_cache import ResumedCache
from ippo_cli.rollout.noise import GumbelNoise, row_keys
from ippo_cli.rollout.prefix_cache import CacheBlock, Prefix, PrefixCache
from ippo_cli.rollout.static_batching import Recompute, StaticBatching
from ippo_cli.types import Completion

RecordedTurns = list[tuple[int, list[int], Completion]]  # row, prompt, completion, by turn


def dialogue(
    model: Any,
    tokenizer: Any,
    prefixes: PrefixCache | None,
    *,
    rows: Sequence[int] = range(8),
    turns: int = 4,
    seed: int = 0,
    batch_size: int = 3,
    rewritten: float = 0.0,
    any_rank: Callable[[bool], bool] | None = None,
    **sampling: Any,
) -> RecordedTurns:
    """Rows with observations of random length after each turn; some end after each turn, some skip one, and some have a
    `rewritten` history. The events of a row are a function of the seed, the row and the turn.
    """
    settings, result = replace(PLAIN, **{"max_new_tokens": 6, **sampling}), []
    prompts = {
        row: random.Random(f"{seed}/{row}").choices(range(3, len(tokenizer)), k=1 + row * 5 % 11) for row in rows
    }
    for turn in range(turns):
        present = [row for row in prompts if random.Random(f"{seed}/{row}/{turn}/away").random() > 0.2]
        keys = row_keys(seed, f"turn{turn}", torch.tensor(present, dtype=torch.long))
        asked = DecodeRows(
            prompts=[prompts[row] for row in present],
            noise=GumbelNoise(keys, settings.max_new_tokens),
            prefixes=prefixes,
            keys=present,
        )
        completions = decode(
            model,
            tokenizer,
            asked,
            settings,
            batch_size=batch_size,
            context_limit=120,
            hooks=DecodeHooks(any_rank=any_rank),
        )
        for row, completion in zip(present, completions, strict=True):
            result.append((row, prompts[row], completion))
            chance = random.Random(f"{seed}/{row}/{turn}")
            actual = chance.choices(range(3, len(tokenizer)), k=chance.randint(1, 9))
            prompts[row] = prompts[row] + completion.ids.tolist() + actual
            if chance.random() < rewritten:
                place = chance.randrange(len(prompts[row]))
                prompts[row] = [*prompts[row][:place], 3 + chance.randrange(20), *prompts[row][place + 1 :]]
            if chance.random() < 0.2:
                del prompts[row]
    return result


def same(found: RecordedTurns, expected: RecordedTurns) -> None:
    assert len(found) == len(expected)
    for (row, prompt, one), (other_row, other_prompt, other) in zip(found, expected, strict=True):
        assert (row, prompt, one.ids.tolist()) == (other_row, other_prompt, other.ids.tolist())
        assert (one.text, one.finished) == (other.text, other.finished)
        torch.testing.assert_close(one.logprobs, other.logprobs, atol=1e-5, rtol=0)
        torch.testing.assert_close(one.behavior_logprobs, other.behavior_logprobs, atol=1e-5, rtol=0)


@torch.no_grad()
def teacher_forced(model: Any, message: RecordedTurns) -> list[Tensor]:
    found = []
    for _, prompt, completion in message:
        whole = torch.tensor([prompt + completion.ids.tolist()])
        logprobs = torch.log_softmax(model(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1 : -1], dim=-1)
        found.append(logprobs.gather(1, completion.ids[:, None]).squeeze(1))
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["llama", "gemma3 (two rotations, sliding window)", "gpt2 (learned positions)"])
def test_samples_independent_of_prefix_reuse(
    name: str, seed: int, llama: Any, tokenizer: Any, random_weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llama if name == "llama" else random_weights(attention_models(len(tokenizer))[name])
    chance = random.Random(seed)
    monkeypatch.setattr(continuous_batching, "GROUPS_ON_CPU", chance.choice([1, 2, 6]))
    monkeypatch.setattr(kv_cache, "COLUMNS_AHEAD", chance.choice([1, 3, 128]))
    monkeypatch.setattr(prompt_queue, "MAX_PREFILL_TOKENS", chance.choice([12, 8192]))
    prefixes, batch_size = PrefixCache(), chance.choice([1, 3, 5, 8])
    found = dialogue(model, tokenizer, prefixes, seed=seed, batch_size=batch_size, rewritten=0.2)
    assert prefixes.reused_tokens > 100
    assert prefixes.read_tokens + prefixes.reused_tokens == sum(len(prompt) for _, prompt, _ in found)
    for logprobs, (_, _, completion) in zip(teacher_forced(model, found), found, strict=True):
        torch.testing.assert_close(completion.logprobs, logprobs, atol=1e-5, rtol=0)
    same(found, dialogue(model, tokenizer, None, seed=seed, rewritten=0.2))


def attention_models(vocabulary: int) -> dict[str, Any]:
    special = {"vocab_size": vocabulary, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    return {
        "gpt2 (learned positions)": GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128, **special),
        "gemma3 (two rotations, sliding window)": Gemma3TextConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            num_key_value_heads=2,
            max_position_embeddings=128,
            head_dim=8,
            sliding_window=6,
            layer_types=["sliding_attention", "full_attention"],
            query_pre_attn_scalar=8,
            **special,
        ),
    }


def test_penalty_includes_cached_tokens(llama: Any, tokenizer: Any) -> None:
    settings = {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "repetition_penalty": 1.4, "min_new_tokens": 2}
    prefixes = PrefixCache()
    found = dialogue(llama, tokenizer, prefixes, **settings)
    assert prefixes.reused_tokens > 100
    same(found, dialogue(llama, tokenizer, None, **settings))


@pytest.mark.parametrize("way", [StaticBatching, Recompute])
def test_other_runners_read_whole_prompts(
    way: Any, llama: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = dialogue(llama, tokenizer, None)
    monkeypatch.setitem(model_runner.runner_types, llama, way)
    prefixes = PrefixCache()
    same(dialogue(llama, tokenizer, prefixes), expected)
    assert len(prefixes) == prefixes.reused_tokens == 0


def turn_of(model: Any, tokenizer: Any, prefixes: PrefixCache, prompts: list[list[int]], **hooks: Any) -> Any:
    return decode(
        model,
        tokenizer,
        DecodeRows(prompts=prompts, noise=None, prefixes=prefixes, keys=range(len(prompts))),
        replace(PLAIN, greedy=True, max_new_tokens=6),
        batch_size=8,
        context_limit=120,
        hooks=DecodeHooks(**hooks),
    )


def test_only_new_tokens_read(llama: Any, tokenizer: Any) -> None:
    prefixes, widths = PrefixCache(), []
    first = [[5, 6, 7, 8], [9, 8, 7]]
    result = turn_of(llama, tokenizer, prefixes, first)
    assert (prefixes.read_tokens, prefixes.reused_tokens) == (7, 0)
    known = [prompt + one.ids.tolist() for prompt, one in zip(first, result, strict=True)]
    later = [known[0] + [4, 4], known[1] + [11]]
    llama.model.embed_tokens.register_forward_hook(lambda _, inputs, __: widths.append(tuple(inputs[0].shape)))
    turn_of(llama, tokenizer, prefixes, later)
    # The last sampled token is not in the cache.
    assert widths[0] == (2, 3)
    assert prefixes.read_tokens == 7 + 3 + 2
    assert prefixes.reused_tokens == len(known[0]) + len(known[1]) - 2


@pytest.mark.parametrize(("prompt", "reused"), [([5, 6, 7, 8], 3), ([5, 6, 9, 9, 9, 9], 2), ([4, 6, 7, 8, 9], 0)])
def test_unchanged_prefix_of_history_reused(prompt: list[int], reused: int, llama: Any, tokenizer: Any) -> None:
    prefixes = PrefixCache()
    turn_of(llama, tokenizer, prefixes, [[5, 6, 7, 8]])
    found = turn_of(llama, tokenizer, prefixes, [prompt])
    assert prefixes.reused_tokens == reused
    expected = turn_of(llama, tokenizer, PrefixCache(), [prompt])
    assert found[0].ids.tolist() == expected[0].ids.tolist()
    torch.testing.assert_close(found[0].logprobs, expected[0].logprobs, atol=1e-5, rtol=0)


def test_memory_limit_evicts_oldest_rows(llama: Any, tokenizer: Any) -> None:
    unlimited = PrefixCache()
    expected = dialogue(llama, tokenizer, unlimited)
    per_token = 2 * 2 * 32 * 4  # keys and values, layers, hidden size, bytes
    assert unlimited.num_bytes >= per_token * sum(prefix.length for _, prefix in unlimited._entries.values())
    reused = []
    for budget in (0, 20_000, 60_000):

        class Watched(PrefixCache):
            def put(self, *parked: Any) -> None:
                super().put(*parked)
                assert self.num_bytes <= self.max_bytes

        prefixes = Watched(budget)
        same(dialogue(llama, tokenizer, prefixes), expected)
        reused.append(prefixes.reused_tokens)
    assert 0 == reused[0] < reused[1] < reused[2] < unlimited.reused_tokens


def block_of(tokens: int) -> CacheBlock:
    return CacheBlock({0: torch.zeros(tokens, 2, 4)}, {0: torch.zeros(tokens, 2, 4)})


def test_block_counted_until_its_last_row_dropped() -> None:
    cache, block, ids = PrefixCache(), block_of(5), [np.arange(3), np.arange(2)]
    size = 2 * 5 * 8 * 4
    cache.put(["a", "b"], ids, [Prefix(block, 0, 3), Prefix(block, 3, 2)])
    assert cache.num_bytes == size
    cache.drop(["a", "unknown"])
    assert cache.num_bytes == size
    taken = cache.take("b", np.array([0, 1, 2]))
    assert taken is not None
    assert (taken.first, taken.length) == (3, 2)
    assert len(cache) == 0
    assert cache.num_bytes == size, "it is still to be read"
    cache.release(taken)
    assert cache.num_bytes == 0


def test_eviction_order_and_key_replacement() -> None:
    cache = PrefixCache(max_bytes=3 * 2 * 8 * 4)
    for key in ("a", "b", "a", "c", "d"):
        cache.put([key], [np.arange(1)], [Prefix(block_of(1), 0, 1)])
    assert list(cache._entries) == ["a", "c", "d"]
    assert cache.num_bytes == cache.max_bytes


def test_interruption_releases_prefixes(llama: Any, tokenizer: Any) -> None:
    prefixes, prompts = PrefixCache(), [[5, 6, 7, 8], [9, 8, 7], [3, 4]]
    result = turn_of(llama, tokenizer, prefixes, prompts)
    known = [prompt + one.ids.tolist() + [4] for prompt, one in zip(prompts, result, strict=True)]

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turn_of(llama, tokenizer, prefixes, known, poll=interrupt)
    assert len(prefixes) == prefixes.num_bytes == 0


def shifted_mask(self: Any, keys: Any, window: Any) -> Tensor:
    """A mask that hides each row's first token."""
    self.group.starts = self.group.starts + 1
    mask = right_mask(self, keys, window)
    self.group.starts = self.group.starts - 1
    return mask


right_mask, right_restore = ResumedCache.build_mask, ResumedCache.restore_rows


def shifted_restore(self: Any, block: Any, rows: Any, firsts: Any, counts: Any) -> None:
    """Cached tokens shifted by one position."""
    right_restore(self, block, rows, np.maximum(firsts - 1, 0), counts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gemma3 (two rotations, sliding window)", "gpt2 (learned positions)"])
def test_wrong_resumption_detected(
    name: str, dtype: torch.dtype, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(attention_models(len(tokenizer))[name]).to(dtype).eval()  # small weights
    assert model_runner.resume_matches_full_forward(model)
    right = ContinuousBatching.compute_logits
    for by in (1, -1, 3):

        def misplaced(self: Any, ids: Any, positions: Any, mask: Any, by: int = by, **options: Any) -> Any:
            wrong = (positions + by * (self._resumed_cache is not None)).clamp(min=0)
            return right(self, ids, wrong, mask, **options)

        with monkeypatch.context() as patch:
            patch.setattr(ContinuousBatching, "compute_logits", misplaced)
            assert not model_runner.resume_matches_full_forward(model)
    for part, wrong in (("build_mask", shifted_mask), ("restore_rows", shifted_restore)):
        with monkeypatch.context() as patch:
            patch.setattr(ResumedCache, part, wrong)
            assert not model_runner.resume_matches_full_forward(model)


def test_model_with_wrong_resumption_reads_whole_prompts(
    llama: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = dialogue(llama, tokenizer, None)
    monkeypatch.setattr(ResumedCache, "restore_rows", shifted_restore)
    prefixes = PrefixCache()
    same(dialogue(llama, tokenizer, prefixes), expected)
    assert prefixes.reused_tokens == 0
    assert "every prompt is read whole" in caplog.text


def test_equal_forwards_with_unequal_reuse(llama: Any, tokenizer: Any) -> None:
    parts, budgets = [range(6), range(6, 8), range(0)], [1 << 30, 0, 0]
    expected = [dialogue(llama, tokenizer, None, rows=part) for part in parts]
    assert model_runner.can_resume(llama)
    caches = [PrefixCache(budget) for budget in budgets]

    def run(rank: int, model: Any, any_rank: AnyRank) -> Any:
        model_runner.runner_types[model], model_runner.resumable[model] = ContinuousBatching, True
        return dialogue(model, tokenizer, caches[rank], rows=parts[rank], any_rank=any_rank)

    found, forwards = on_ranks(len(parts), llama, run)
    assert forwards[0] == forwards[1] == forwards[2]
    assert caches[0].reused_tokens > 0
    for one, other in zip(found, expected, strict=True):
        same(one, other)
