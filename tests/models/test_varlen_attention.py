"""Packed rows by one kernel per layer: wiring, gradients, and when sequences attend in groups instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from architectures import tiny_model
from host_reads import HostReads
from rows import everything, rollout
from torch import Tensor, nn
from transformers import PreTrainedModel

from ippo_cli.models import packing, prefixes, varlen_attention
from ippo_cli.models.actor import Policy
from ippo_cli.models.layout import build_sequences
from ippo_cli.models.load import checkpoint_activations, disable_dropout
from ippo_cli.models.packing import PACKED, VARLEN, Suffixes, enable_packing, last_hidden_states, pack
from ippo_cli.models.varlen_attention import fits_kernel, wrap_kernel

LENGTHS = [9, 6, 6, 1]
SUFFIXES = [Suffixes(0, [7, 3]), Suffixes(1, [5, 1]), Suffixes(2, [20, 4, 2])]  # two prefixes with equal counts
TOKENS = sum(LENGTHS) + sum(sum(each.lengths) for each in SUFFIXES)
CPU = torch.device("cpu")


def emulate(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Tensor:
    """torch's kernel, sequence by sequence: key j of query i if i - left <= j <= i + right, counted from the ends."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert enable_gqa or query.shape[1] == key.shape[1]
    left, right = window_size
    outputs, found = [], (0, 0)
    for (q0, q1), (k0, k1) in zip(pairwise(cu_seq_q.tolist()), pairwise(cu_seq_k.tolist()), strict=True):
        found = (max(found[0], q1 - q0), max(found[1], k1 - k0))
        keys, values = (
            each[k0:k1].repeat_interleave(query.shape[1] // key.shape[1], dim=1).float() for each in (key, value)
        )
        scores = torch.einsum("qhd,khd->hqk", query[q0:q1].float(), keys)
        scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
        place = torch.arange(k1 - k0) - (torch.arange(q1 - q0)[:, None] + k1 - k0 - (q1 - q0))
        visible = torch.ones_like(place, dtype=torch.bool)
        visible &= place <= right if right >= 0 else visible
        visible &= place >= -left if left >= 0 else visible
        weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    assert found == (max_q, max_k)
    assert (len(query), len(key)) == (cu_seq_q[-1], cu_seq_k[-1])
    return torch.cat(outputs).to(query.dtype)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[int]]:
    """Function that uses a function as the kernel, on the CPU and in float32 too; returns the tokens of
    each call, which it appends.
    """

    def use(function: Any) -> list[int]:
        calls: list[int] = []

        def record_call(query: Tensor, *others: Any, **options: Any) -> Tensor:
            calls.append(len(query))
            return function(query, *others, **options)

        wrapped = wrap_kernel(function)
        if wrapped is not None:
            wrapped = replace(wrapped, function=record_call)
        monkeypatch.setattr(varlen_attention, "load_kernel", lambda: wrapped)
        monkeypatch.setattr(varlen_attention, "_tested", {})
        return calls

    for owner in (varlen_attention, packing):
        monkeypatch.setattr(owner, "DEVICES", ("cpu",))
    monkeypatch.setattr(varlen_attention, "DTYPES", (torch.float32, torch.bfloat16))
    return use


def random_states(heads: int = 4, key_heads: int = 2, tokens: int = TOKENS, size: int = 8) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, count, tokens, size, generator=random, requires_grad=True)
        for count in (heads, key_heads, key_heads)
    ]


class GroupedHeads(nn.Module):
    num_key_value_groups = 2


def run_layer(name: str, states: list[Tensor], row: Any, **options: Any) -> list[Tensor]:
    """The output of a layer's attention, and the gradients of queries, keys and values."""
    output, _ = packing.attend(name, GroupedHeads(), *states, None, packing=row, **options)
    weights = torch.linspace(-0.1, 0.1, output.numel()).view_as(output)
    return [output.detach(), *torch.autograd.grad((output * weights).sum(), states)]


@pytest.mark.parametrize("suffixes", [[], SUFFIXES])
@pytest.mark.parametrize("window", [None, 1, 4, 12, 100])
@pytest.mark.parametrize("scaling", [None, 0.7])
def test_kernel_has_outputs_and_gradients_of_groups(
    kernel: Any, suffixes: list[Suffixes], window: int | None, scaling: float | None
) -> None:
    calls = kernel(emulate)
    states = random_states(tokens=sum(LENGTHS) + sum(sum(each.lengths) for each in suffixes))
    options = {"sliding_window": window, "scaling": scaling}
    row = pack(LENGTHS, CPU, suffixes)
    actual, expected = (run_layer(name, states, row, **options) for name in (VARLEN, "sdpa"))
    assert calls[-1] == states[0].shape[2], "one call reads the row"
    torch.testing.assert_close(actual[0], expected[0], atol=1e-5, rtol=0)
    for one, other in zip(actual[1:], expected[1:], strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt2", "phi3"])
def test_model_has_outputs_and_gradients_of_groups(family: str, kernel: Any) -> None:
    calls = kernel(emulate)
    settings = {} if family == "gpt2" else {"num_attention_heads": 4, "hidden_size": 32, "num_key_value_heads": 2}
    lm = tiny_model(family, initializer_range=0.3, **settings)
    disable_dropout(lm)
    model = lm.base_model
    assert enable_packing(model)
    ids = torch.randint(0, 60, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    found, used = [], []
    for name in (VARLEN, "sdpa", VARLEN):
        calls.clear()
        model.config._attn_implementation_internal = PACKED[name]
        if found:
            checkpoint_activations(model)
        model.train().zero_grad()
        last_hidden_states(model, ids, pack(LENGTHS, CPU, SUFFIXES)).square().mean().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        used.append(len(calls))
    assert used == [2, 0, 4], "a call per layer, and again to recompute it"
    for actual in (found[0], found[2]):
        torch.testing.assert_close(actual, found[1], atol=1e-6, rtol=1e-4)


def test_log_probabilities_of_shared_prompts(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "MIN_PREFIX_TOKENS", 1)
    calls = kernel(emulate)
    policy = Policy(tiny_model("qwen3", initializer_range=0.3)).eval()
    assert enable_packing(policy.lm.base_model)
    made = rollout(
        [[5, 6, 7], [8], [5, 6, 7], list(range(2, 50))],
        [[10, 11, 12, 13, 14], [15, 16], [17, 18, 19, 20], [21]],
        [[1] * 5, [1] * 2, [1] * 4, [1]],
    )
    calls.clear()
    padded, shared = (
        policy(
            build_sequences(made, everything(made), packed=packs, share_prefixes=packs), temperature=1.0, chunk_tokens=9
        ).logprobs
        for packs in (False, True)
    )
    assert calls == [64, 64]
    torch.testing.assert_close(shared, padded, atol=1e-5, rtol=0)


def test_heads_repeated_for_kernel_without_grouped_heads(kernel: Any) -> None:
    def attend_heads(*states: Any, scale: Any, window_size: Any) -> Tensor:
        return emulate(*states, scale=scale, window_size=window_size)

    calls, row = kernel(attend_heads), pack(LENGTHS, CPU, SUFFIXES)
    actual, expected = (run_layer(name, random_states(), row) for name in (VARLEN, "sdpa"))
    assert calls[-1] == TOKENS
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_first_use_in_a_checkpointed_forward(kernel: Any) -> None:
    calls, states, row = kernel(emulate), random_states(), pack(LENGTHS, CPU, SUFFIXES)

    def layer(*inputs: Tensor) -> Tensor:
        return packing.attend(VARLEN, GroupedHeads(), *inputs, None, packing=row)[0]

    output = torch.utils.checkpoint.checkpoint(layer, *states, use_reentrant=False)
    weights = torch.linspace(-0.1, 0.1, output.numel()).view_as(output)
    gradients = torch.autograd.grad((output * weights).sum(), states)
    assert calls.count(TOKENS) == 2, "the row is read again for the backward pass"
    for one, other in zip(gradients, run_layer("sdpa", states, row)[1:], strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_host_does_not_wait_for_layout(kernel: Any) -> None:
    kernel(lambda query, key, value, *bounds, scale, window_size, enable_gqa: query.clone())
    varlen_attention._tested[varlen_attention.AttentionShape(CPU, torch.float32, 4, 2, 8, None, False)] = (
        varlen_attention.load_kernel()
    )
    states = random_states()
    with HostReads() as found:
        output, _ = packing.attend(VARLEN, nn.Module(), *states, None, packing=pack(LENGTHS, CPU, SUFFIXES))
    assert found.count == 0
    assert torch.equal(output[0], states[0][0].transpose(0, 1))


def see_one_more(*arguments: Any, window_size: tuple[int, int], **options: Any) -> Tensor:
    """A window that is too long by one."""
    left, right = window_size
    return emulate(*arguments, window_size=(left + 1 if left >= 0 else left, right), **options)


def align_at_the_start(query: Tensor, key: Tensor, value: Tensor, *bounds: Any, **options: Any) -> Tensor:
    """A causal mask that is aligned at the first query and key, as in `scaled_dot_product_attention`."""
    cu_q, cu_k, max_q, _ = bounds
    index = torch.cat([torch.arange(k, k + n) for k, n in zip(cu_k[:-1].tolist(), cu_q.diff().tolist(), strict=True)])
    return emulate(query, key[index], value[index], cu_q, cu_q, max_q, max_q, **options)


class WithoutKeyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        return states.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return torch.zeros_like(grads[0])


def lose_gradient(query: Tensor, key: Tensor, *others: Any, **options: Any) -> Tensor:
    return emulate(query, WithoutKeyGradient.apply(key), *others, **options)


def fail(*_: Any, **__: Any) -> Tensor:
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer")


def imitate(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function with the signature of the kernel."""

    def run_kernel(*arguments: Any, scale: Any, window_size: Any, enable_gqa: bool = False) -> Tensor:
        return function(*arguments, scale=scale, window_size=window_size, enable_gqa=enable_gqa)

    return run_kernel


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (see_one_more, "relative error 0"),
        (align_at_the_start, "relative error 1"),
        (lose_gradient, "relative error 1"),
        (fail, "only supports Ampere"),
    ],
)
def test_wrong_kernel_is_refused_with_a_warning(
    function: Any, reason: str, kernel: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kernel(imitate(function))
    row, states = pack(LENGTHS, CPU, SUFFIXES), random_states()
    actual, expected = (run_layer(name, states, row, sliding_window=5) for name in (VARLEN, "sdpa"))
    run_layer(VARLEN, states, row, sliding_window=5)
    assert all(torch.equal(*pair) for pair in zip(actual, expected, strict=True))
    (record,) = caplog.records
    assert "packed rows attend in groups" in record.message
    assert reason in record.message


def test_bf16_kernel_passes_its_test(kernel: Any, caplog: pytest.LogCaptureFixture) -> None:
    calls = kernel(emulate)
    states = [each.detach().bfloat16().requires_grad_() for each in random_states(heads=14, key_heads=2, size=64)]
    run_layer(VARLEN, states, pack(LENGTHS, CPU, SUFFIXES), sliding_window=5)
    assert calls[-1] == TOKENS
    assert not caplog.records


def test_kernel_that_raises_for_a_row_is_replaced_by_groups(kernel: Any, caplog: pytest.LogCaptureFixture) -> None:
    def refuse_row(query: Tensor, *others: Any, **options: Any) -> Tensor:
        if len(query) == TOKENS:
            raise RuntimeError("too many tokens")
        return emulate(query, *others, **options)

    calls, states, row = kernel(imitate(refuse_row)), random_states(), pack(LENGTHS, CPU, SUFFIXES)
    actual, expected = (run_layer(name, states, row) for name in (VARLEN, "sdpa"))
    assert all(torch.equal(*pair) for pair in zip(actual, expected, strict=True))
    count = len(calls)
    run_layer(VARLEN, states, row)
    assert len(calls) == count, "it is not called again"
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_exhausted_memory_is_not_a_reason_for_groups(kernel: Any) -> None:
    def exhaust_memory(*_: Any, **__: Any) -> Tensor:
        raise torch.OutOfMemoryError("out of memory")

    kernel(imitate(exhaust_memory))
    with pytest.raises(torch.OutOfMemoryError):
        run_layer(VARLEN, random_states(), pack(LENGTHS, CPU, SUFFIXES))


def test_model_that_fails_with_the_kernel_attends_in_groups(kernel: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The kernel is right in its test, but not for the model's own row."""

    def wrong(query: Tensor, *others: Any, **options: Any) -> Tensor:
        output = emulate(query, *others, **options)
        return output if len(query) == varlen_attention._TEST_TOKENS else output.roll(1, dims=0)

    kernel(imitate(wrong))
    model: PreTrainedModel = tiny_model("llama").base_model
    assert enable_packing(model)
    assert model.config._attn_implementation == PACKED["sdpa"]
    (record,) = caplog.records
    assert "LlamaModel has other outputs if one kernel attends" in record.message


def test_float32_test_of_a_bf16_model_uses_groups(monkeypatch: pytest.MonkeyPatch, kernel: Any) -> None:
    monkeypatch.setattr(varlen_attention, "DTYPES", (torch.bfloat16,))
    calls = kernel(emulate)
    model = tiny_model("llama").base_model
    assert enable_packing(model)
    assert model.config._attn_implementation == PACKED[VARLEN]
    assert not calls


META = {"device": "meta", "dtype": torch.bfloat16}


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"dtype": torch.float16}, True),
        ({"dtype": torch.float32}, False),
        ({"device": "cpu"}, False),
        ({"size": 256}, True),
        ({"size": 264}, False),
        ({"size": 100}, False),
        ({"value_size": 32}, False),
        ({"value_dtype": torch.float32}, False),
        ({"key_heads": 3}, False),
        ({"key_heads": 4}, True),
        ({"dropout": 0.1}, False),
        ({"dropout": 0.0, "scaling": 0.5, "sliding_window": 4, "softcap": None, "is_causal": True}, True),
        ({"softcap": 30.0}, False),
        ({"s_aux": torch.zeros(4)}, False),
        ({"position_bias": torch.zeros(4)}, False),
        ({"is_causal": False}, False),
    ],
)
def test_states_that_the_kernel_reads(change: dict[str, Any], fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen_attention, "DEVICES", ("meta",))  # in place of "cuda"
    own = {"key_heads": 2, "size": 64, "dtype": torch.bfloat16, "device": "meta", **change}
    place = {"dtype": own.pop("dtype"), "device": own.pop("device")}
    heads, size = own.pop("key_heads"), own.pop("size")
    states = [torch.empty(1, count, 5, size, **place) for count in (4, heads, heads)]
    states[2] = torch.empty(
        1, heads, 5, own.pop("value_size", size), dtype=own.pop("value_dtype", place["dtype"]), device=place["device"]
    )
    assert fits_kernel(*states, own) is fits


def test_states_on_a_cpu_never_reach_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise AssertionError("the kernel is loaded")

    monkeypatch.setattr(varlen_attention, "load_kernel", load)
    for dtype in (torch.float32, torch.bfloat16):
        states = [each.detach().to(dtype).requires_grad_() for each in random_states()]
        actual, expected = (run_layer(name, states, pack(LENGTHS, CPU, SUFFIXES)) for name in (VARLEN, "sdpa"))
        assert all(torch.equal(*pair) for pair in zip(actual, expected, strict=True))


def test_signatures_of_torch() -> None:
    def since_2_10(*states_and_bounds: Any, is_causal: bool = False, return_aux: Any = None) -> None: ...

    def since_2_11(*states_and_bounds: Any, scale: Any = None, window_size: Any = (-1, -1)) -> None: ...

    kernels = [wrap_kernel(function) for function in (since_2_10, since_2_11, emulate)]
    assert [None if kernel is None else kernel.has_grouped_heads for kernel in kernels] == [None, False, True]


def test_installed_torch_has_the_kernel() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    kernel = varlen_attention.load_kernel()
    assert kernel == wrap_kernel(varlen.varlen_attn)
