"""Selected log-probabilities and entropies from hidden states: exact, differentiable, chunked."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ippo_cli.formulas import selected_logprobs

H, V = 6, 37


def example(dtype: torch.dtype = torch.float32) -> tuple[Tensor, nn.Linear, Tensor]:
    """Hidden states `[3, 5, H]`, a head and ids."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    hidden = torch.randn(3, 5, H, generator=generator).to(dtype).requires_grad_()
    return hidden, nn.Linear(H, V).to(dtype), torch.randint(0, V, (3, 5), generator=generator)


def whole(hidden: Tensor, head: nn.Module, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The definitions, on all logits at once, in double precision."""
    every = (head(hidden).double() / temperature).log_softmax(-1)
    return every.gather(-1, ids[..., None]).squeeze(-1), -(every.exp() * every).sum(-1)


def close(actual: Tensor, expected: Tensor | list) -> None:
    """Assert equality within 1e-5, for any dtype."""
    torch.testing.assert_close(actual.double(), torch.as_tensor(expected, dtype=torch.float64), atol=1e-5, rtol=1e-5)


def test_logprob_and_entropy_of_a_biased_coin() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0]] * 2)
    ids = torch.tensor([0, 1])
    logprobs, entropy = selected_logprobs(logits, nn.Identity(), ids, temperature=1.0, chunk_tokens=8)
    close(logprobs, [math.log(0.75), math.log(0.25)])
    close(entropy, [-0.75 * math.log(0.75) - 0.25 * math.log(0.25)] * 2)
    # at temperature 0.5 the odds of 3 become 9
    logprobs, entropy = selected_logprobs(logits, nn.Identity(), ids, temperature=0.5, chunk_tokens=8)
    close(logprobs, [math.log(0.9), math.log(0.1)])
    close(entropy, [-0.9 * math.log(0.9) - 0.1 * math.log(0.1)] * 2)


@pytest.mark.parametrize("chunk", [1, 4, 15, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("objective", ["logprobs", "entropy", "both"])
def test_matches_unchunked(chunk: int, temperature: float, objective: str) -> None:
    hidden, head, ids = example()
    actual = selected_logprobs(hidden, head, ids, temperature=temperature, chunk_tokens=chunk)
    expected = whole(hidden, head, ids, temperature)
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine.shape == ids.shape
        assert mine.dtype == torch.float32
        close(mine, theirs)
    a, b = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1)) * torch.tensor(
        {"logprobs": [1.0, 0.0], "entropy": [0.0, 1.0], "both": [1.0, 1.0]}[objective]
    ).reshape(2, 1, 1)

    def gradients(logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, ...]:
        terms = {"logprobs": [logprobs * a], "entropy": [entropy * b], "both": [logprobs * a, entropy * b]}[objective]
        return torch.autograd.grad(sum(term.sum() for term in terms), (hidden, head.weight, head.bias))

    for mine, theirs in zip(gradients(*actual), gradients(*expected), strict=True):
        close(mine, theirs)


def test_without_entropy() -> None:
    hidden, head, ids = example()
    logprobs, entropy = selected_logprobs(hidden, head, ids, temperature=0.8, chunk_tokens=4, with_entropy=False)
    assert entropy is None
    expected = selected_logprobs(hidden, head, ids, temperature=0.8, chunk_tokens=4)[0]
    assert torch.equal(logprobs, expected)
    inputs = (hidden, head.weight)
    for mine, theirs in zip(
        torch.autograd.grad(logprobs.sum(), inputs), torch.autograd.grad(expected.sum(), inputs), strict=True
    ):
        close(mine, theirs)


def test_gradients_match_finite_differences() -> None:
    hidden, head, ids = example(torch.float64)

    def both(h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return selected_logprobs(h, lambda rows: rows @ weight.T, ids, temperature=0.7, chunk_tokens=4)

    assert torch.autograd.gradcheck(both, (hidden, head.weight))
    for output in (0, 1):  # alone
        assert torch.autograd.gradcheck(
            lambda h, w, output=output: both(h, w)[output], (hidden, head.weight), fast_mode=True
        )


def test_half_precision_logits_cast_to_float32() -> None:
    hidden, head, ids = example(torch.bfloat16)
    actual = selected_logprobs(hidden, head, ids, temperature=0.7, chunk_tokens=15)
    for mine, theirs in zip(actual, whole(hidden, head, ids, 0.7), strict=True):
        assert mine.dtype == torch.float32
        close(mine, theirs)
    actual[0].sum().backward()
    assert hidden.grad.dtype == torch.bfloat16


def test_impossible_token() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0, -math.inf]] * 2, requires_grad=True)
    logprobs, entropy = selected_logprobs(logits, nn.Identity(), torch.tensor([0, 0]), temperature=1.0, chunk_tokens=1)
    close(entropy, [-0.75 * math.log(0.75) - 0.25 * math.log(0.25)] * 2)
    (10 * entropy + logprobs).sum().backward()
    slope = -10 * 0.75 * (math.log(0.75) + entropy[0].item())
    close(logits.grad, [[slope + 0.25, -slope - 0.25, 0.0]] * 2)
    excluded, _ = selected_logprobs(logits, nn.Identity(), torch.tensor([2, 2]), temperature=1.0, chunk_tokens=1)
    assert excluded.tolist() == [-math.inf] * 2


def test_large_logits() -> None:
    logits = torch.full((2, V), -80.0)
    logits[:, 0] = 80.0
    logits.requires_grad_()
    ids = torch.tensor([0, 5])
    logprobs, entropy = selected_logprobs(logits, nn.Identity(), ids, temperature=1.0, chunk_tokens=1)
    close(logprobs, [0.0, -160.0])
    close(entropy, [0.0, 0.0])
    (logprobs + entropy).sum().backward()
    expected = torch.zeros(2, V)
    expected[1, [0, 5]] = torch.tensor([-1.0, 1.0])
    close(logits.grad, expected)


def test_nan_logits_propagate() -> None:
    logits = torch.tensor([[0.0, math.nan]])
    for result in selected_logprobs(logits, nn.Identity(), torch.tensor([0]), temperature=1.0, chunk_tokens=1):
        assert result.isnan().all()


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_no_tokens_keep_graph(grad: bool, shape: tuple[int, ...]) -> None:
    calls: list[int] = []
    head = nn.Linear(H, V)
    head.register_forward_hook(lambda _module, inputs, _output: calls.append(inputs[0].shape[0]))
    hidden, ids = torch.zeros(*shape, H, requires_grad=True), torch.zeros(shape, dtype=torch.long)
    with torch.set_grad_enabled(grad):
        logprobs, entropy = selected_logprobs(hidden, head, ids, temperature=1.0, chunk_tokens=4)
    assert logprobs.shape == entropy.shape == shape
    assert calls == [1]
    if grad:
        (logprobs.sum() + entropy.sum()).backward()
        assert not head.weight.grad.any()
        assert hidden.grad.shape == hidden.shape


def test_head_called_per_chunk() -> None:
    calls: list[int] = []
    hidden, head, ids = example()
    head.register_forward_hook(lambda _module, inputs, _output: calls.append(inputs[0].shape[0]))
    with torch.no_grad():
        selected_logprobs(hidden, head, ids, temperature=1.0, chunk_tokens=4)
    assert calls == [4, 4, 4, 3]
    calls.clear()
    selected_logprobs(hidden, head, ids, temperature=1.0, chunk_tokens=4)[0].sum().backward()
    assert sorted(calls) == [3, 4, 4, 4, 4, 4, 4]  # the last chunk's logits are kept
    calls.clear()
    selected_logprobs(hidden, head, ids, temperature=1.0, chunk_tokens=4, keep_last=False)[0].sum().backward()
    assert sorted(calls) == [3, 3, 4, 4, 4, 4, 4, 4]


class WidestLogits(TorchDispatchMode):
    """Records the largest row count of tensors with the vocabulary as last dimension (except the head's weight)."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[-1] == V and leaf.numel() != H * V:
                self.rows = max(self.rows, leaf.numel() // V)
        return result


@pytest.mark.parametrize("with_entropy", [True, False])
def test_logits_limited_to_chunk(with_entropy: bool) -> None:
    hidden, head, ids = example()
    with WidestLogits() as seen:
        logprobs, entropy = selected_logprobs(
            hidden, head, ids, temperature=0.9, chunk_tokens=4, with_entropy=with_entropy
        )
        assert seen.rows == 4
        (logprobs.sum() + (0 if entropy is None else entropy.sum())).backward()
    assert seen.rows == 4


def test_backward_saves_logits_of_last_chunk() -> None:
    hidden, head, ids = example()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        logprobs, entropy = selected_logprobs(hidden, head, ids, temperature=0.9, chunk_tokens=4)
    assert [len(x) for x in kept if x.dim() and x.shape[-1] == V and len(x) != H] == [3]
    (logprobs.sum() + entropy.sum()).backward()
    assert hidden.grad.any()


def test_padding_ids_ignored() -> None:
    hidden, head, ids = example()
    mask = torch.arange(5)[None] < torch.tensor([[5], [3], [0]])
    other = torch.where(mask[..., None], hidden, 7.0)
    one = selected_logprobs(hidden, head, ids, temperature=1.0, chunk_tokens=4)
    two = selected_logprobs(other, head, torch.where(mask, ids, 0), temperature=1.0, chunk_tokens=4)
    for a, b in zip(one, two, strict=True):
        close(a[mask], b[mask])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": 0.0}, "temperature=0.0; must be positive"),
        ({"temperature": math.nan}, "temperature=nan; must be positive"),
        ({"chunk_tokens": 0}, "chunk_tokens=0; must be at least 1"),
    ],
)
def test_invalid_settings_rejected(wrong: dict, message: str) -> None:
    hidden, head, ids = example()
    with pytest.raises(ValueError, match=message):
        selected_logprobs(hidden, head, ids, **({"temperature": 1.0, "chunk_tokens": 4} | wrong))
