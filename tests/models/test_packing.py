"""Packed rows: every sequence attends only to itself, and outputs do not change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import everything, rollout
from torch import Tensor, nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ippo_cli.models import attention_groups, packing
from ippo_cli.models.agreement import compute_in_float32
from ippo_cli.models.attention_groups import Group, group_by_length
from ippo_cli.models.layout import build_sequences
from ippo_cli.models.load import checkpoint_activations
from ippo_cli.models.packing import PACKED, Packing, Suffixes, enable_packing, last_hidden_states, pack

VOCABULARY = 40
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
}


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**COMMON)).eval().base_model


def qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**COMMON, head_dim=8)).eval().base_model


def gpt2() -> PreTrainedModel:
    shape = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).eval().base_model


def gpt_neox() -> PreTrainedModel:
    shape = {key: value for key, value in COMMON.items() if key != "num_key_value_heads"}
    return GPTNeoXForCausalLM(GPTNeoXConfig(**shape)).eval().base_model


def opt() -> PreTrainedModel:
    shape = {key: value for key, value in COMMON.items() if key not in ("num_key_value_heads", "intermediate_size")}
    config = OPTConfig(**shape, ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=64)
    return OPTForCausalLM(config).eval().base_model


def sliding() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**COMMON, sliding_window=4)).eval().base_model


def gemma3() -> PreTrainedModel:
    layers = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(
        **COMMON, head_dim=8, sliding_window=6, layer_types=layers, query_pre_attn_scalar=8, pad_token_id=0
    )
    return Gemma3ForCausalLM(config).eval().base_model


def gemma2() -> PreTrainedModel:
    """Eager attention with soft caps that its scores reach."""
    layers = ["sliding_attention", "full_attention"]
    config = Gemma2Config(
        **COMMON,
        head_dim=8,
        sliding_window=6,
        layer_types=layers,
        query_pre_attn_scalar=8,
        pad_token_id=0,
        attn_logit_softcapping=0.5,
    )
    model = Gemma2ForCausalLM(config).eval().base_model
    for layer in model.layers:
        layer.self_attn.q_proj.weight.data.mul_(20)
        layer.self_attn.k_proj.weight.data.mul_(20)
    return model


def gpt_oss() -> PreTrainedModel:
    """Eager attention with sinks."""
    config = GptOssConfig(
        **COMMON, head_dim=8, sliding_window=6, num_local_experts=2, num_experts_per_tok=1, pad_token_id=0
    )
    return GptOssForCausalLM(config).eval().base_model


def alibi() -> PreTrainedModel:
    shape = {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    return BloomForCausalLM(BloomConfig(**shape)).eval().base_model


def whole(lengths: list[int], suffixes: list[Suffixes]) -> list[list[int]]:
    """Token indices of every whole sequence of a packed row: sequences without a shared prefix, then suffixes."""
    place, starts = 0, []
    for length in [*lengths, *(length for each in suffixes for length in each.lengths)]:
        starts.append(list(range(place, place + length)))
        place += length
    shared = [starts[each.prefix_index] for each in suffixes for _ in each.lengths]
    rests = starts[len(lengths) :]
    used = {each.prefix_index for each in suffixes}
    return [starts[number] for number in range(len(lengths)) if number not in used] + [
        before + rest for before, rest in zip(shared, rests, strict=True)
    ]


def alone(model: PreTrainedModel, ids: Tensor, lengths: list[int]) -> Tensor:
    return torch.cat([last_hidden_states(model, part, None) for part in ids.split(lengths, dim=1)])


@pytest.mark.parametrize("make", [llama, qwen3, gpt2, sliding, gemma2, gemma3, gpt_oss])
@pytest.mark.parametrize("lengths", [[5], [6, 6, 6], [9, 7, 7, 3, 1], [60, 59, 31, 8, 2, 1, 1]])
def test_packed_row_matches_separate_sequences(make: Any, lengths: list[int]) -> None:
    torch.manual_seed(0)
    model = make()
    assert enable_packing(model)
    ids = torch.randint(0, VOCABULARY, (1, sum(lengths)))
    weights = torch.randn(sum(lengths), 32)
    found, gradients = [], []
    for states in (last_hidden_states(model, ids, pack(lengths, ids.device)), alone(model, ids, lengths)):
        model.zero_grad()
        (states * weights).sum().backward()
        found.append(states.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.allclose(*found, atol=1e-5)
    assert torch.allclose(*gradients, atol=1e-5 * float(gradients[1].abs().max()))


@pytest.mark.parametrize("make", [llama, qwen3, gpt2, gpt_neox, opt, sliding, gemma2, gemma3, gpt_oss])
@pytest.mark.parametrize(
    ("lengths", "suffixes"),
    [
        ([5], [Suffixes(0, [4, 1])]),
        ([9, 6, 3], [Suffixes(0, [3, 3]), Suffixes(2, [20, 12, 2])]),
        ([3], [Suffixes(0, [60, 40, 1, 1, 1])]),  # attends as several groups
    ],
)
def test_suffixes_match_whole_sequences(make: Any, lengths: list[int], suffixes: list[Suffixes]) -> None:
    torch.manual_seed(0)
    model = make()
    assert enable_packing(model)
    places = whole(lengths, suffixes)
    row = torch.randint(0, VOCABULARY, (1, sum(lengths) + sum(sum(each.lengths) for each in suffixes)))
    weights = torch.randn(sum(map(len, places)), 32)

    def together() -> Tensor:
        states = last_hidden_states(model, row, pack(lengths, row.device, suffixes))
        return torch.cat([states[place] for place in places])

    found, gradients = [], []
    for reading in (together, lambda: torch.cat([last_hidden_states(model, row[:, place], None) for place in places])):
        model.zero_grad()
        states = reading()
        (states * weights).sum().backward()
        found.append(states.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.allclose(*found, atol=1e-5)
    assert torch.allclose(*gradients, atol=1e-5 * float(gradients[1].abs().max()))


@pytest.mark.parametrize("suffixes", [[], [Suffixes(1, [2, 1])]])
def test_gradient_checkpointing(suffixes: list[Suffixes]) -> None:
    torch.manual_seed(0)
    model, lengths = llama(), [7, 4, 2]
    assert enable_packing(model)
    ids, gradients = torch.randint(0, VOCABULARY, (1, 13 + 3 * len(suffixes))), []
    for checkpointing in (False, True):
        if checkpointing:
            checkpoint_activations(model)
        model.train().zero_grad()
        last_hidden_states(model, ids, pack(lengths, ids.device, suffixes)).square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.allclose(*gradients, rtol=1e-5)


class WithoutWindow:
    """A config as its layers see it."""

    sliding_window = None

    def __init__(self, config: Any) -> None:
        self.config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self.config, name)


def untold() -> PreTrainedModel:
    """It masks its sliding windows, which exceed the test length, without passing them to attention."""
    model = MistralForCausalLM(MistralConfig(**COMMON, sliding_window=100)).eval().base_model
    for layer in model.layers:
        layer.self_attn.config = WithoutWindow(model.config)
    return model


@pytest.mark.parametrize("make", [untold, alibi])
def test_unsupported_attention_uses_padded_rows(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = make()
    before = model.config._attn_implementation
    assert not enable_packing(model)
    assert model.config._attn_implementation == before
    assert before not in PACKED.values()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "padded rows" in caplog.text


def trained_like() -> PreTrainedModel:
    """Deep, with weights as large as after training: in bf16 two correct forwards differ by half."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**COMMON | {"num_hidden_layers": 24})).eval().base_model
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(25)
    return model


def test_deep_bf16_model_packs(caplog: pytest.LogCaptureFixture) -> None:
    model = trained_like().bfloat16()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    assert enable_packing(model)
    assert not caplog.records
    kept = model.state_dict()
    assert all(kept[name].dtype == value.dtype and torch.equal(kept[name], value) for name, value in weights.items())


def test_wrong_positions_of_deep_bf16_model_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "pack", misplaced(1))
    assert not enable_packing(trained_like().bfloat16())


class Failing(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.inner, self.error = nn.Linear(4, 4), error

    def forward(self, states: Tensor) -> Tensor:
        self.inner(states)
        raise self.error


@pytest.mark.parametrize("error", [ValueError("half way"), KeyboardInterrupt("half way")])
def test_failed_float32_forward_restores_weights(error: BaseException) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Failing(error)).bfloat16()
    before = [parameter.data_ptr() for parameter in model.parameters()]
    with compute_in_float32(model):
        assert model[0](torch.ones(1, 4)).dtype == torch.float32
    with pytest.raises(type(error), match="half way"), compute_in_float32(model):
        model(torch.ones(1, 4))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert [parameter.data_ptr() for parameter in model.parameters()] == before
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def misplaced(by: int) -> Any:
    """`pack`, with all sequences but the first shifted by a number of positions."""

    def made(lengths: list[int], device: torch.device, suffixes: list[Suffixes]) -> Packing:
        right = pack(lengths, device, suffixes)
        positions = right.positions.clone()
        positions[:, lengths[0] :] += by
        return replace(right, positions=positions)

    return made


def begun_anew(lengths: list[int], device: torch.device, suffixes: list[Suffixes]) -> Packing:
    """`pack`, with positions of suffixes that restart at 0."""
    right = pack(lengths, device, suffixes)
    positions = right.positions.clone()
    place = sum(lengths)
    for each in suffixes:
        for length in each.lengths:
            positions[:, place : place + length] -= lengths[each.prefix_index]
            place += length
    return replace(right, positions=positions)


def blind(lengths: list[int], device: torch.device, suffixes: list[Suffixes]) -> Packing:
    """`pack`, with suffixes that do not attend to their prefix."""
    right = pack(lengths, device, suffixes)
    return replace(right, parts=tuple(replace(part, prefix=slice(0, 0)) for part in right.parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [llama, qwen3, gpt2, gpt_neox, opt, sliding, gemma2, gemma3, gpt_oss])
def test_positions_off_by_one_detected(
    make: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    caplog.set_level("INFO")
    model = make().to(dtype)
    for wrong in (misplaced(1), misplaced(3), begun_anew, blind):
        monkeypatch.setattr(packing, "pack", wrong)
        assert not enable_packing(model)
    assert "cannot be read" not in caplog.text, "no forward failed"
    monkeypatch.setattr(packing, "pack", pack)
    assert enable_packing(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_effects_of_positions_detected(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = gpt2()
    with torch.no_grad():  # adjacent positions have similar embeddings, as in a trained model
        model.wpe.weight.copy_(0.001 * torch.randn(model.wpe.weight.shape).cumsum(dim=0))
    model = model.to(dtype)
    monkeypatch.setattr(packing, "pack", misplaced(1))
    assert not enable_packing(model)
    monkeypatch.setattr(packing, "pack", pack)
    assert enable_packing(model)


def test_fault_of_this_package_is_not_lack_of_support(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Group, "unpack")
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    with pytest.raises(AttributeError, match="unpack"):
        enable_packing(LlamaForCausalLM(config).model)


def test_packed_row_rejected_without_support() -> None:
    model, ids = llama(), torch.arange(5)[None]
    with pytest.raises(RuntimeError, match="LlamaModel received a packed row"):
        last_hidden_states(model, ids, pack([3, 2], ids.device))


def test_nondeterministic_model_uses_padded_rows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = llama()
    caplog.set_level("INFO")

    def one_long(lengths: list[int], device: torch.device, suffixes: list[Suffixes]) -> Packing:
        return pack([sum(lengths) + sum(sum(each.lengths) for each in suffixes)], device)

    monkeypatch.setattr(packing, "pack", one_long)
    assert not enable_packing(model)
    assert "cannot be read" not in caplog.text
    assert model.config._attn_implementation == "sdpa"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=40))
def test_positions_unique_and_padding_bounded(lengths: list[int]) -> None:
    lengths = sorted(lengths, reverse=True)
    made = pack(lengths, torch.device("cpu"))
    assert made.positions.tolist() == [[place for length in lengths for place in range(length)]]
    row, token = 0, 0
    for group in made.groups:
        own = lengths[row : row + group.rows]
        assert group.tokens == slice(token, token + sum(own))
        assert group.width == own[0]
        assert group.rows * group.width - sum(own) <= attention_groups.PADDING_BUDGET["cpu"]
        numbers = torch.arange(sum(lengths), dtype=torch.float)[None, None, :, None]
        spread = group.unpack(numbers[:, :, group.tokens])
        assert spread.shape == (group.rows, 1, group.width, 1)
        starts = [token + sum(own[:number]) for number in range(group.rows)]
        for number, (start, length) in enumerate(zip(starts, own, strict=True)):
            assert spread[number, 0, :length, 0].tolist() == list(range(start, start + length))
        assert torch.equal(group.join(spread.transpose(1, 2))[0, :, 0, 0], numbers[0, 0, group.tokens, 0])
        row, token = row + group.rows, token + sum(own)
    assert (row, token) == (len(lengths), sum(lengths))


def test_long_sequence_in_separate_group() -> None:
    lengths = [2048, *[64] * 255]
    there = sum(length**2 for length in lengths)
    for device in ("cpu", "cuda"):
        parts = [lengths[part] for part in group_by_length(lengths, device)]
        assert [length for part in parts for length in part] == lengths
        assert len(parts) <= 3
        assert sum(len(part) * part[0] ** 2 for part in parts) < 3 * there


def test_packing_by_hand() -> None:
    made = rollout([[5, 6], [4, 5, 6]], [[7, 2], [9, 8, 2]], [[1, 1], [1, 1, 1]])
    sequences = build_sequences(made, everything(made), packed=True)
    assert sequences.input_ids.tolist() == [[4, 5, 6, 9, 8, 2, 5, 6, 7, 2]]
    assert sequences.packing is not None
    assert sequences.packing.positions.tolist() == [[0, 1, 2, 3, 4, 5, 0, 1, 2, 3]]
    assert sequences.state.tolist() == [[7, 8, 9, 9], [2, 3, 4, 5]]  # the short row's past its end: a valid index
    short = build_sequences(made, everything(made), packed=True, final=False)
    assert short.input_ids.tolist() == [[4, 5, 6, 9, 8, 5, 6, 7]], "the last token is read only for the state after it"
    assert short.state[:, :2].tolist() == [[6, 7], [2, 3]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(3, 60), min_size=1, max_size=5), st.lists(st.integers(3, 60), max_size=6)),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
def test_packed_states_match_padded(rows: list[tuple[list[int], list[int]]], final: bool) -> None:
    prompts, responses = [list(part) for part in zip(*rows, strict=True)]
    made = rollout(prompts, responses, [[1] * len(response) for response in responses], pad=7)
    for packed in (False, True):
        sequences = build_sequences(made, everything(made), packed=packed, final=final)
        read_ids = sequences.input_ids.flatten()
        for row, (prompt, response) in enumerate(rows):
            whole = prompt + response
            for column in range(len(response) + final):
                place, wanted = int(sequences.state[row, column]), whole[: len(prompt) + column]
                assert read_ids[place - len(wanted) + 1 : place + 1].tolist() == wanted


def test_short_bf16_sequences_attend_in_float32_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "FP32_WIDTH", 200)
    monkeypatch.setattr(packing, "has_bf16_instructions", lambda: True)  # without them, long sequences do as well
    seen: list[tuple[int, torch.dtype]] = []
    plain = packing.ALL_ATTENTION_FUNCTIONS["sdpa"]

    def watched(module: nn.Module, query: Tensor, *others: Any, **options: Any) -> Any:
        seen.append((query.shape[2], query.dtype))
        return plain(module, query, *others, **options)

    monkeypatch.setattr(packing, "ALL_ATTENTION_FUNCTIONS", {"sdpa": watched})
    lengths = [400, 200, 30]  # too different to attend together
    states = torch.randn(3, 1, 2, sum(lengths), 8, generator=torch.Generator().manual_seed(0))
    row = pack(lengths, states.device)
    exact, _ = packing.attend("sdpa", nn.Module(), *states, None, packing=row)
    low, _ = packing.attend("sdpa", nn.Module(), *states.bfloat16(), None, packing=row)
    assert seen[3:] == [(400, torch.bfloat16), (200, torch.float32), (30, torch.float32)]
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), exact, atol=0.03, rtol=0.02)
