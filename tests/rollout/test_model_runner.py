"""The three model runners, on the architectures that they support, with equal forwards on every rank."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from thread_ranks import AnyRank, on_ranks
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    OPTConfig,
    Qwen2Config,
    Qwen3Config,
    RwkvConfig,
)

from ippo_cli.config.schema import AdapterInit, AdapterMismatch, LoraConfig
from ippo_cli.models.lora import FrozenBase
from ippo_cli.rollout import continuous_batching, decode, model_runner
from ippo_cli.rollout.continuous_batching import ContinuousBatching
from ippo_cli.rollout.decode_state import DecodeHooks
from ippo_cli.rollout.fixed_slots import FixedSlots
from ippo_cli.rollout.model_runner import can_resume, model_runner_for
from ippo_cli.rollout.static_batching import Recompute, StaticBatching

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
COMMON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **SPECIAL}
GROUPED = {**COMMON, "intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 8}
ALTERNATING = ["sliding_attention", "full_attention"]
LORA = LoraConfig(
    rank=2,
    alpha=4.0,
    use_rslora=False,
    use_dora=False,
    target_modules="all-linear",
    rank_pattern={},
    alpha_pattern={},
    adapter_mismatch=AdapterMismatch.error,
    init=AdapterInit.default,
)

CONTINUOUS = {
    "gpt2 (learned positions)": lambda v: GPT2Config(
        vocab_size=v, n_embd=32, n_layer=2, n_head=4, n_positions=128, **SPECIAL
    ),
    "opt (shifted learned positions)": lambda v: OPTConfig(
        vocab_size=v, ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=128, **COMMON
    ),
    "gpt-neox (partial rotation)": lambda v: GPTNeoXConfig(vocab_size=v, intermediate_size=64, **COMMON),
    "qwen2 (grouped queries)": lambda v: Qwen2Config(vocab_size=v, **GROUPED),
    "qwen3": lambda v: Qwen3Config(vocab_size=v, **GROUPED),
    "mistral (short sliding window)": lambda v: MistralConfig(vocab_size=v, sliding_window=6, **GROUPED),
    "gemma2 (soft caps, sliding window)": lambda v: Gemma2Config(
        vocab_size=v, sliding_window=6, layer_types=ALTERNATING, query_pre_attn_scalar=8, **GROUPED
    ),
    "gemma3 (two rotations, sliding window)": lambda v: Gemma3TextConfig(
        vocab_size=v, sliding_window=6, layer_types=ALTERNATING, query_pre_attn_scalar=8, **GROUPED
    ),
}
OTHERS = {
    "bloom (ALiBi)": (
        StaticBatching,
        lambda v: BloomConfig(vocab_size=v, hidden_size=32, n_layer=2, n_head=4, **SPECIAL),
    ),
    "falcon (ALiBi)": (StaticBatching, lambda v: FalconConfig(vocab_size=v, alibi=True, **COMMON)),
    "mamba (recurrent)": (
        StaticBatching,
        lambda v: MambaConfig(vocab_size=v, hidden_size=32, num_hidden_layers=2, state_size=8, **SPECIAL),
    ),
    "rwkv (custom state)": (
        Recompute,
        lambda v: RwkvConfig(vocab_size=v, hidden_size=32, num_hidden_layers=2, context_length=64, **SPECIAL),
    ),
}


@pytest.mark.parametrize("in_slots", [False, True])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_attention_models_use_continuous_batching(
    name: str,
    in_slots: bool,
    asked: Any,
    random_weights: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = random_weights(CONTINUOUS[name](len(asked.tokenizer)))
    monkeypatch.setattr(decode, "uses_slots", lambda _: in_slots)
    assert isinstance(model_runner_for(model), ContinuousBatching)
    assert not [record for record in caplog.records if record.name == model_runner.__name__]
    found = asked.decoded(model)
    assert found.response_mask.sum() > 60
    torch.testing.assert_close(found.logprobs, asked.teacher_forced(model, found), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OTHERS)
def test_other_models_use_other_runners(
    name: str, dtype: torch.dtype, asked: Any, random_weights: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    way, config = OTHERS[name]
    model = random_weights(config(len(asked.tokenizer)), scale=2.0).to(dtype)
    assert isinstance(model_runner_for(model), way)
    (output,) = (record.getMessage() for record in caplog.records if record.name == model_runner.__name__)
    assert {StaticBatching: "keep their places empty", Recompute: "decoding without one is slow"}[way] in output
    found = asked.decoded(model, max_new_tokens=12)
    assert found.response_mask.sum() > 60
    if dtype == torch.float32:
        torch.testing.assert_close(found.logprobs, asked.teacher_forced(model, found), atol=1e-5, rtol=0)


@pytest.mark.parametrize("reading", [True, False])
def test_bf16_adapters_use_continuous_batching_and_resume(
    reading: bool, asked: Any, llama: Any, caplog: pytest.LogCaptureFixture
) -> None:
    base = FrozenBase(llama.bfloat16(), "base")
    adapter = base.add_adapter(LORA, "actor", 0)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.normal_(std=0.1)
    with adapter.activate() if reading else nullcontext():
        assert isinstance(model_runner_for(base.lm), ContinuousBatching)
        assert can_resume(base.lm)
    assert not caplog.records


def test_deep_bf16_model_uses_continuous_batching_and_slots(asked: Any) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(**GROUPED | {"num_hidden_layers": 24, "vocab_size": len(asked.tokenizer)})
    model = AutoModelForCausalLM.from_config(config).bfloat16().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(25)
    assert isinstance(model_runner_for(model), ContinuousBatching)
    assert can_resume(model)
    assert model_runner.matches_full_forward(model, FixedSlots)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, KeyboardInterrupt])
def test_unrelated_errors_raised(error: type[BaseException], llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(ContinuousBatching, "compute_logits", fails)
    with pytest.raises(error):
        model_runner_for(llama)
    assert llama not in model_runner.runner_types


def test_all_runners_sample_same_tokens(asked: Any, llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = asked.decoded(llama)
    for way in (StaticBatching, Recompute):
        monkeypatch.setitem(model_runner.runner_types, llama, way)
        found = asked.decoded(llama, batch_size=4)
        assert torch.equal(found.response_ids, expected.response_ids)
        assert torch.equal(found.finished, expected.finished)
        torch.testing.assert_close(found.logprobs, expected.logprobs, atol=1e-5, rtol=0)


def test_half_precision(asked: Any, llama: Any) -> None:
    model = llama.to(torch.bfloat16)
    assert isinstance(model_runner_for(model), ContinuousBatching)
    found = asked.decoded(model)
    assert found.logprobs.dtype == torch.float32
    # A step and a full sequence round differently.
    torch.testing.assert_close(found.logprobs, asked.teacher_forced(model, found), atol=0.05, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize(
    ("way", "part"),
    [(ContinuousBatching, "_prefilling"), (ContinuousBatching, "_decoding"), (FixedSlots, "_decoding")],
)
def test_positions_off_by_one_detected(
    way: type[ContinuousBatching], part: str, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONTINUOUS[name](60)).to(dtype).eval()  # small weights
    right = ContinuousBatching.compute_logits
    for by in (1, 3):

        def misplaced(self: Any, ids: Any, positions: Any, mask: Any, by: int = by, **options: Any) -> Any:
            return right(self, ids, positions + by * bool(getattr(self, part)), mask, **options)

        monkeypatch.setattr(ContinuousBatching, "compute_logits", misplaced)
        assert not model_runner.matches_full_forward(model, way)
    monkeypatch.setattr(ContinuousBatching, "compute_logits", right)
    assert model_runner.matches_full_forward(model, way)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unmasked_padding_detected(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(OTHERS["bloom (ALiBi)"][1](60)).to(dtype).eval()
    assert model_runner.matches_full_forward(model, StaticBatching)

    def read_all(self: Any, ids: Any) -> Any:
        self._mask = torch.ones_like(self._mask)
        return right(self, ids)

    right = StaticBatching.compute_logits
    monkeypatch.setattr(StaticBatching, "compute_logits", read_all)
    assert not model_runner.matches_full_forward(model, StaticBatching)


def test_wrapped_model(asked: Any, llama: Any) -> None:
    class View(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lm = llama

        def forward(self, **inputs: Any) -> Any:
            return self.lm(**inputs)

    view = View().eval()
    assert isinstance(model_runner_for(view), ContinuousBatching)
    assert torch.equal(asked.decoded(view).response_ids, asked.decoded(llama).response_ids)


def test_excess_groups_merged(asked: Any, llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuous_batching, "GROUPS_ON_CPU", 2)
    way = ContinuousBatching(llama)
    tokens = torch.arange(3, 7)
    with torch.no_grad(), way.session():
        for length in (4, 1, 6, 2):
            way.prefill(torch.arange(10, 10 + length)[None], np.array([length]))
            assert len(way._groups) <= 2
        found = way.decode(tokens)
    for row, length in enumerate((4, 1, 6, 2)):
        whole = torch.cat([torch.arange(10, 10 + length), tokens[row : row + 1]])
        torch.testing.assert_close(found[row], llama(input_ids=whole[None]).logits[0, -1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("way", [ContinuousBatching, StaticBatching])
def test_equal_forwards_on_all_ranks(asked: Any, llama: Any, way: Any) -> None:
    parts = [slice(0, 9), slice(9, 9), slice(9, 12), slice(4, 5)]
    expected = [asked.decoded(llama, rows=part) for part in parts]

    def decode_on(rank: int, model: Any, any_rank: AnyRank) -> Any:
        model_runner.runner_types[model] = way
        return asked.decoded(model, rows=parts[rank], batch_size=3, hooks=DecodeHooks(any_rank=any_rank))

    found, forwards = on_ranks(len(parts), llama, decode_on)
    assert forwards[0] == forwards[1] == forwards[2] == forwards[3]
    assert forwards[0][-1] > 20
    for one, alone in zip(found, expected, strict=True):
        assert torch.equal(one.response_ids, alone.response_ids)
        torch.testing.assert_close(one.logprobs, alone.logprobs, atol=1e-5, rtol=0)
