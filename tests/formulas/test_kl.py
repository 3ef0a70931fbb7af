"""KL estimators, the exact divergence and the adaptive coefficient."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ippo_cli.formulas import adaptive_kl_step, aggregate, full_kl, kl_estimate

NAMES = ["k1", "abs", "k2", "k3"]
PLUS = [f"{name}+" for name in NAMES]


def close(actual: Tensor, expected: Tensor | list) -> None:
    """Assert equality within 1e-5, for any dtype."""
    torch.testing.assert_close(actual.double(), torch.as_tensor(expected, dtype=torch.float64), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("k1", [0.5, -0.5, 0.0]),
        ("abs", [0.5, 0.5, 0.0]),
        ("k2", [0.125, 0.125, 0.0]),
        ("k3", [math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5, 0.0]),
    ],
)
def test_estimators_at_half_and_minus_half(name: str, expected: list) -> None:
    logprobs, ref = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.5, -1.5, -3.0])
    close(kl_estimate(logprobs, ref, estimator=name), expected)
    close(kl_estimate(logprobs, ref, estimator=f"{name}+"), expected)


def test_k3_clamped_at_10_without_gradient() -> None:
    logprobs = torch.tensor([-100.0, -2.7, -2.5, 10.9, 11.1, 100.0], requires_grad=True)
    k3 = kl_estimate(logprobs, torch.zeros(6), estimator="k3")
    close(k3, [10.0, 10.0, math.exp(2.5) - 3.5, math.exp(-10.9) + 9.9, 10.0, 10.0])
    k3.sum().backward()
    close(logprobs.grad, [0.0, 0.0, 1 - math.exp(2.5), 1 - math.exp(-10.9), 0.0, 0.0])


def test_k3_precise_for_close_policies() -> None:
    d = torch.tensor([1e-3, -1e-3])
    torch.testing.assert_close(kl_estimate(d, torch.zeros(2), estimator="k3"), d.square() / 2, rtol=2e-3, atol=0)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), name=st.sampled_from(NAMES))
def test_plus_forms_have_gradient_of_k2(ragged, seed: int, name: str) -> None:
    batch = ragged(seed)
    logprobs, ref = (batch.zeroed() * 5).requires_grad_(), batch.zeroed()
    plus = kl_estimate(logprobs, ref, estimator=f"{name}+")
    assert torch.equal(plus, kl_estimate(logprobs, ref, estimator=name))
    (grad,) = torch.autograd.grad(plus.sum(), logprobs)
    (of_k2,) = torch.autograd.grad(kl_estimate(logprobs, ref, estimator="k2").sum(), logprobs)
    assert torch.equal(grad, of_k2)
    close(grad, (logprobs - ref).detach())


@pytest.mark.parametrize("name", NAMES)
def test_estimators_match_finite_differences(name: str) -> None:
    logprobs, ref = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logprobs.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, ref, estimator=name), (logprobs,))


def policies(seed: int, vocabulary: int = 16) -> tuple[Tensor, Tensor]:
    """Log-probabilities of two nearby policies, in double precision."""
    logits = torch.randn(2, vocabulary, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 0.7
    pi, ref = logits.log_softmax(-1)
    return pi, ref


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_unbiased(name: str) -> None:
    for seed in range(5):
        pi, ref = policies(seed)
        divergence = (pi.exp() * (pi - ref)).sum()
        expected = (pi.exp() * kl_estimate(pi, ref, estimator=name)).sum()
        torch.testing.assert_close(expected, divergence, rtol=1e-10, atol=1e-12)
        assert abs(divergence - (ref.exp() * (ref - pi)).sum()) > 1e-3  # so that the direction is tested


def test_k3_of_samples_approximates_kl() -> None:
    pi, ref = policies(0)
    drawn = torch.multinomial(pi.exp(), 200_000, replacement=True, generator=torch.Generator().manual_seed(1))
    divergence = (pi.exp() * (pi - ref)).sum().item()
    assert kl_estimate(pi[drawn], ref[drawn], estimator="k3").mean().item() == pytest.approx(divergence, rel=0.02)


def test_plus_forms_have_unbiased_gradient() -> None:
    logits = torch.randn(2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    free = logits[0].clone().requires_grad_()
    pi, ref = free.log_softmax(-1), logits[1].log_softmax(-1)
    (exact,) = torch.autograd.grad((pi.exp() * (pi - ref)).sum(), free, retain_graph=True)
    weighted = (pi.exp().detach() * kl_estimate(pi, ref, estimator="k3+")).sum()
    (estimated,) = torch.autograd.grad(weighted, free)
    close(estimated, exact)


@pytest.mark.parametrize("name", NAMES + PLUS)
def test_nan_padding_ignored(ragged, name: str) -> None:
    batch = ragged(1)
    logprobs, ref = batch.zeroed(), batch.zeroed()
    counts = {"mode": "token-mean", "num_tokens": 4, "num_sequences": 3}
    clean = kl_estimate(logprobs, ref, estimator=name)
    assert not clean[~batch.mask].any()
    dirty = kl_estimate(batch.poisoned(logprobs), batch.poisoned(ref), estimator=name)
    assert torch.equal(aggregate(clean, batch.mask, **counts), aggregate(dirty, batch.mask, **counts))


@pytest.mark.parametrize("name", ["k4", "full", "", "+", "k1++"])
def test_unknown_estimator_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="must be one of k1 abs k2 k3"):
        kl_estimate(torch.zeros(1), torch.zeros(1), estimator=name)


# full_kl


def heads(hidden_size: int = 5, vocabulary: int = 11) -> tuple[nn.Linear, nn.Linear]:
    """Two language-model heads."""
    torch.manual_seed(0)
    return nn.Linear(hidden_size, vocabulary, bias=False), nn.Linear(hidden_size, vocabulary)


def test_full_kl_of_two_coins_by_hand() -> None:
    three_to_one, fair = torch.tensor([[math.log(3.0), 0.0]]), torch.zeros(1, 2)
    actual = full_kl(three_to_one, nn.Identity(), fair, nn.Identity(), temperature=1.0, chunk_tokens=4)
    close(actual, [0.75 * math.log(1.5) + 0.25 * math.log(0.5)])
    hot = full_kl(three_to_one * 2, nn.Identity(), fair, nn.Identity(), temperature=2.0, chunk_tokens=4)
    close(hot, actual)


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_full_kl_matches_unchunked(chunk: int, temperature: float) -> None:
    head, ref_head = heads()
    hidden, ref_hidden = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    inputs = hidden.requires_grad_(), head.weight
    actual = full_kl(hidden, head, ref_hidden, ref_head, temperature=temperature, chunk_tokens=chunk)
    pi = (head(hidden) / temperature).log_softmax(-1)
    expected = (pi.exp() * (pi - (ref_head(ref_hidden) / temperature).log_softmax(-1))).sum(-1)
    assert actual.shape == (2, 3)
    close(actual, expected)
    weights = torch.randn(2, 3)
    got = torch.autograd.grad((actual * weights).sum(), inputs)
    for mine, whole in zip(got, torch.autograd.grad((expected * weights).sum(), inputs), strict=True):
        close(mine, whole)


def test_full_kl_matches_finite_differences() -> None:
    head, ref_head = (head.double() for head in heads())
    hidden, ref_hidden = torch.randn(2, 7, 5, dtype=torch.float64)
    hidden.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda h: full_kl(h, head, ref_hidden, ref_head, temperature=0.7, chunk_tokens=3), (hidden,)
    )


def test_full_kl_zero_for_equal_policies() -> None:
    head, _ = heads()
    hidden = torch.randn(6, 5, requires_grad=True)
    kl = full_kl(hidden, head, hidden.detach(), head, temperature=0.9, chunk_tokens=4)
    kl.sum().backward()
    assert not kl.any()
    assert not hidden.grad.any()


def test_full_kl_has_no_reference_gradient() -> None:
    head, ref_head = heads()
    hidden, ref_hidden = torch.randn(2, 6, 5).unbind()
    ref_hidden.requires_grad_()
    full_kl(hidden, head, ref_hidden, ref_head, temperature=1.0, chunk_tokens=4).sum().backward()
    assert head.weight.grad.any()
    assert ref_hidden.grad is None
    assert ref_head.weight.grad is None


def test_full_kl_with_impossible_tokens() -> None:
    inf = math.inf
    logits = torch.tensor([[math.log(3.0), 0.0, -inf], [math.log(3.0), 0.0, -inf]], requires_grad=True)
    ref = torch.tensor([[0.0, 0.0, -inf], [0.0, 0.0, 0.0]])
    kl = full_kl(logits, nn.Identity(), ref, nn.Identity(), temperature=1.0, chunk_tokens=4)
    coins = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    close(kl, [coins, coins + math.log(1.5)])
    kl.sum().backward()
    slope = 0.75 * (math.log(1.5) - coins)
    close(logits.grad, [[slope, -slope, 0.0], [slope, -slope, 0.0]])


def test_full_kl_infinite_outside_reference_support() -> None:
    kl = full_kl(
        torch.zeros(1, 2),
        nn.Identity(),
        torch.tensor([[0.0, -math.inf]]),
        nn.Identity(),
        temperature=1.0,
        chunk_tokens=1,
    )
    assert kl.tolist() == [math.inf]


def test_full_kl_of_no_tokens_keeps_graph() -> None:
    head, ref_head = heads()
    kl = full_kl(torch.zeros(2, 0, 5), head, torch.zeros(2, 0, 5), ref_head, temperature=1.0, chunk_tokens=4)
    assert kl.shape == (2, 0)
    kl.sum().backward()
    assert not head.weight.grad.any()


def test_full_kl_of_half_precision_computed_in_float32() -> None:
    head, ref_head = (head.bfloat16() for head in heads())
    hidden, ref_hidden = torch.randn(2, 6, 5).bfloat16().unbind()
    kl = full_kl(hidden, head, ref_hidden, ref_head, temperature=0.7, chunk_tokens=4)
    pi = (head(hidden).double() / 0.7).log_softmax(-1)
    expected = (pi.exp() * (pi - (ref_head(ref_hidden).double() / 0.7).log_softmax(-1))).sum(-1)
    assert kl.dtype == torch.float32
    close(kl, expected)


# adaptive_kl_step


@pytest.mark.parametrize(
    ("current", "expected"),
    [(1.0, 0.1), (1.1, 0.101), (2.0, 0.102), (math.inf, 0.102), (0.95, 0.0995), (0.0, 0.098), (-3.0, 0.098)],
)
def test_adaptive_kl_step_by_hand(current: float, expected: float) -> None:
    step = adaptive_kl_step(0.1, current, target=1.0, horizon=640, num_samples=64)
    assert step == pytest.approx(expected, abs=1e-12)


def test_coefficient_is_float() -> None:
    assert type(adaptive_kl_step(0.1, torch.tensor(2.0), target=1.0, horizon=640, num_samples=64)) is float


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"target": 0.0}, "target=0.0; must be positive"), ({"horizon": -1.0}, "horizon=-1.0; must be positive")],
)
def test_nonpositive_target_or_horizon_rejected(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adaptive_kl_step(0.1, 1.0, **({"target": 1.0, "horizon": 640.0, "num_samples": 64} | wrong))


def test_nan_kl_rejected() -> None:
    with pytest.raises(ValueError, match="current_kl=nan"):
        adaptive_kl_step(0.1, math.nan, target=1.0, horizon=640, num_samples=64)
