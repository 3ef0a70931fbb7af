"""Policy objectives, pooled ratios and behavior weights, by hand, against loops, and by finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ippo_cli.formulas import aggregate, behavior_weights, clipped_policy_loss, on_policy_loss, pool_logratio

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(max_examples=30, deadline=None)
CLIP = {"clip_range_low": 0.2, "clip_range_high": 0.3}


def ratios(*values: float) -> tuple[Tensor, Tensor]:
    """New and old log-probabilities with the given ratios."""
    old = torch.linspace(-2.0, -1.0, len(values))
    return (old.double() + torch.tensor(values, dtype=torch.float64).log()).float(), old


def close(actual: Tensor, expected: Tensor | list) -> None:
    """Assert equality within 1e-5, for any dtype."""
    torch.testing.assert_close(actual.double(), torch.as_tensor(expected, dtype=torch.float64), atol=1e-5, rtol=1e-5)


def test_on_policy_loss_by_hand() -> None:
    logprobs = torch.tensor([[-0.5, -2.0, 0.0]], requires_grad=True)
    loss = on_policy_loss(logprobs, torch.tensor([[2.0, -1.0, 0.0]]))
    close(loss, [[1.0, -2.0, 0.0]])
    loss.sum().backward()
    close(logprobs.grad, [[-2.0, 1.0, 0.0]])


def test_clipped_loss_by_hand() -> None:
    new, old = ratios(1.5, 1.1, 0.5, 1.5, 0.9, 0.5)
    advantages = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0, -2.0])
    loss = clipped_policy_loss(new, old, advantages, **CLIP)
    close(loss, [-2.6, -2.2, -1.0, 3.0, 1.8, 1.6])


def test_clipped_loss_gradient() -> None:
    new, old = ratios(1.5, 1.1, 0.5, 1.5, 0.9, 0.5)
    new.requires_grad_()
    advantages = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0, -2.0])
    clipped_policy_loss(new, old, advantages, **CLIP).sum().backward()
    close(new.grad, [0.0, -2.2, -1.0, 3.0, 1.8, 0.0])


def test_dual_clip_bounds_loss_of_negative_advantages() -> None:
    new, old = ratios(10.0, 2.0, 10.0)
    new.requires_grad_()
    loss = clipped_policy_loss(new, old, torch.tensor([-2.0, -2.0, 2.0]), dual_clip=3.0, **CLIP)
    close(loss, [6.0, 4.0, -2.6])
    loss.sum().backward()
    close(new.grad, [0.0, 4.0, 0.0])


@FEW
@given(seed=SEEDS)
def test_loss_at_ratio_one(ragged, seed: int) -> None:
    batch = ragged(seed)
    new, advantages = batch.zeroed().requires_grad_(), batch.zeroed()
    loss = clipped_policy_loss(new, new.detach(), advantages, dual_clip=3.0, **CLIP)
    assert torch.equal(loss, -advantages)
    (clipped,) = torch.autograd.grad(loss.sum(), new)
    (plain,) = torch.autograd.grad(on_policy_loss(new, advantages).sum(), new)
    close(clipped, plain)


def test_large_log_ratios_clamped() -> None:
    new, old = torch.tensor([0.0, -1000.0]), torch.tensor([-1000.0, 0.0])
    loss = clipped_policy_loss(new, old, torch.tensor([-1.0, 1.0]), **CLIP)
    torch.testing.assert_close(loss, torch.tensor([math.exp(20.0), -math.exp(-20.0)]), rtol=1e-5, atol=0)


@FEW
@given(seed=SEEDS, dual=st.sampled_from([None, 3.0]))
def test_clipped_loss_matches_arithmetic(ragged, seed: int, dual: float | None) -> None:
    batch = ragged(seed)
    new, old, advantages = batch.zeroed(), batch.zeroed(), batch.zeroed()
    actual = clipped_policy_loss(new, old, advantages, dual_clip=dual, **CLIP)
    for n, o, a, got in zip(new.flatten(), old.flatten(), advantages.flatten(), actual.flatten(), strict=True):
        rho, adv = math.exp(n.item() - o.item()), a.item()
        expected = max(-adv * rho, -adv * min(max(rho, 0.8), 1.3))
        if dual is not None and adv < 0:
            expected = min(expected, -adv * dual)
        assert got.item() == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert not actual[~batch.mask].any()


@pytest.mark.parametrize("dual", [None, 2.0])
def test_policy_losses_match_finite_differences(dual: float | None) -> None:
    generator = torch.Generator().manual_seed(1)
    new, old, advantages = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator)
    new.requires_grad_()
    mask = torch.arange(20).reshape(4, 5) % 4 != 3
    turn = torch.where(mask, torch.arange(5).expand(4, 5) // 2, -1)
    assert torch.autograd.gradcheck(on_policy_loss, (new, advantages))
    assert torch.autograd.gradcheck(lambda x: clipped_policy_loss(x, old, advantages, dual_clip=dual, **CLIP), (new,))
    for level in ("token", "turn", "sequence"):
        for pooling in ("sum", "mean"):

            def loss(x: Tensor, level: str = level, pooling: str = pooling) -> Tensor:
                logratio = pool_logratio(x, old, mask, turn, level=level, pooling=pooling)
                return clipped_policy_loss(x, old, advantages, dual_clip=dual, logratio=logratio, **CLIP)

            assert torch.autograd.gradcheck(loss, (new,))


@pytest.mark.parametrize("dual", [1.0, 0.5, -3.0])
def test_dual_clip_of_one_or_less_rejected(dual: float) -> None:
    with pytest.raises(ValueError, match="must be greater than 1"):
        clipped_policy_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), dual_clip=dual, **CLIP)


# pool_logratio

TURN = torch.tensor([[0, 0, -1, 1], [0, -1, -1, -1]])
NEW = torch.tensor([[0.1, 0.3, 9.0, -0.2], [0.5, 9.0, 9.0, 9.0]])


@pytest.mark.parametrize(
    ("level", "pooling", "expected"),
    [
        ("token", "sum", [[0.1, 0.3, 0.0, -0.2], [0.5, 0.0, 0.0, 0.0]]),
        ("token", "mean", [[0.1, 0.3, 0.0, -0.2], [0.5, 0.0, 0.0, 0.0]]),
        ("turn", "sum", [[0.4, 0.4, 0.0, -0.2], [0.5, 0.0, 0.0, 0.0]]),
        ("turn", "mean", [[0.2, 0.2, 0.0, -0.2], [0.5, 0.0, 0.0, 0.0]]),
        ("sequence", "sum", [[0.2, 0.2, 0.0, 0.2], [0.5, 0.0, 0.0, 0.0]]),
        ("sequence", "mean", [[0.2 / 3, 0.2 / 3, 0.0, 0.2 / 3], [0.5, 0.0, 0.0, 0.0]]),
    ],
)
def test_pooled_log_ratios_by_hand(level: str, pooling: str, expected: list) -> None:
    close(pool_logratio(NEW, torch.zeros(2, 4), TURN >= 0, TURN, level=level, pooling=pooling), expected)


@FEW
@given(
    seed=SEEDS,
    level=st.sampled_from(["token", "turn", "sequence"]),
    pooling=st.sampled_from(["sum", "mean"]),
    size=st.sampled_from([1.0, 15.0]),
)
def test_pooled_log_ratios_match_loop(ragged, seed: int, level: str, pooling: str, size: float) -> None:
    batch = ragged(seed)
    new, old = batch.noise() * size, batch.noise() * size
    actual = pool_logratio(
        batch.poisoned(new), batch.poisoned(old), batch.mask, batch.turn, level=level, pooling=pooling
    )
    expected = torch.zeros(batch.mask.shape, dtype=torch.float64)
    for row, t in batch.mask.nonzero().tolist():
        unit = batch.mask[row].clone()
        if level == "token":
            unit = torch.arange(unit.numel()) == t
        elif level == "turn":
            unit &= batch.turn[row] == batch.turn[row, t]
        d = new[row, unit].double() - old[row, unit].double()
        expected[row, t] = (d.sum() if pooling == "sum" else d.mean()).clamp(-20, 20)
    close(actual, expected)


def test_clamp_after_pooling() -> None:
    new = torch.tensor([[30.0, -25.0, 18.0]])
    pooled = pool_logratio(
        new, torch.zeros(1, 3), torch.ones(1, 3), torch.zeros(1, 3).long(), level="turn", pooling="sum"
    )
    close(pooled, [[20.0] * 3])  # 23 clamped; clamping first would give 20 - 20 + 18 = 18
    single = pool_logratio(
        new, torch.zeros(1, 3), torch.ones(1, 3), torch.zeros(1, 3).long(), level="token", pooling="sum"
    )
    close(single, [[20.0, -20.0, 18.0]])


def test_pooled_gradient_limited_to_turn() -> None:
    new = torch.where(TURN >= 0, NEW, 0.0).requires_grad_()
    pooled = pool_logratio(new, torch.zeros(2, 4), TURN >= 0, TURN, level="turn", pooling="sum")
    pooled[0, 0].backward()
    assert new.grad.tolist() == [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]


def test_pooling_of_empty_tensor() -> None:
    nothing = torch.zeros(2, 0)
    for level in ("token", "turn", "sequence"):
        assert pool_logratio(nothing, nothing, nothing, nothing.long(), level=level, pooling="mean").shape == (2, 0)


def test_unknown_levels_and_poolings_rejected() -> None:
    arguments = (NEW, NEW, TURN >= 0, TURN)
    with pytest.raises(ValueError, match="level=row; must be one of token turn sequence"):
        pool_logratio(*arguments, level="row", pooling="sum")
    with pytest.raises(ValueError, match="pooling=max; must be one of sum mean"):
        pool_logratio(*arguments, level="token", pooling="max")
    with pytest.raises(ValueError, match="level=turn; must be one of token sequence"):
        behavior_weights(*arguments[:3], level="turn", cap=2.0)


# behavior_weights

TRAIN = torch.tensor([[3.0, 0.5, 9.0], [0.9, 1.0, 9.0]]).log()
ON = torch.tensor([[1, 1, 0], [1, 1, 0]])


def test_behavior_weights_by_hand() -> None:
    sampler = torch.zeros(2, 3)
    close(behavior_weights(TRAIN, sampler, ON, level="token", cap=2.0), [[2.0, 0.5, 0.0], [0.9, 1.0, 0.0]])
    close(behavior_weights(TRAIN, sampler, ON, level="sequence", cap=2.0), [[1.5, 1.5, 0.0], [0.9, 0.9, 0.0]])


def test_band_applied_before_cap() -> None:
    sampler = torch.zeros(2, 3)
    token = behavior_weights(TRAIN, sampler, ON, level="token", cap=2.0, band=(0.6, 2.5))
    close(token, [[0.0, 0.0, 0.0], [0.9, 1.0, 0.0]])
    sequence = behavior_weights(TRAIN, sampler, ON, level="sequence", cap=math.inf, band=(1.0, 2.0))
    close(sequence, [[1.5, 1.5, 0.0], [0.0, 0.0, 0.0]])


def test_behavior_weights_detached_and_ignore_padding(ragged) -> None:
    batch = ragged(2)
    train, sampler = batch.zeroed(), batch.zeroed()
    for level in ("token", "sequence"):
        weights = behavior_weights(train.clone().requires_grad_(), sampler, batch.mask, level=level, cap=2.0)
        assert not weights.requires_grad
        dirty = behavior_weights(batch.poisoned(train), batch.poisoned(sampler), batch.mask, level=level, cap=2.0)
        assert torch.equal(weights, dirty)
        assert not weights[~batch.mask].any()


def test_behavior_weights_finite_for_distant_policies() -> None:
    apart = torch.tensor([[500.0, 500.0]])
    for level in ("token", "sequence"):
        weights = behavior_weights(apart, torch.zeros(1, 2), torch.ones(1, 2), level=level, cap=math.inf)
        torch.testing.assert_close(weights, torch.full((1, 2), math.exp(20.0)), rtol=1e-5, atol=0)


def test_nonpositive_cap_rejected() -> None:
    with pytest.raises(ValueError, match=r"cap=0\.0; must be positive"):
        behavior_weights(TRAIN, TRAIN, ON, level="token", cap=0.0)


def test_nan_padding_ignored(ragged) -> None:
    batch = ragged(4)
    new, old, advantages = batch.zeroed(), batch.zeroed(), batch.zeroed()
    clean = clipped_policy_loss(new, old, advantages, dual_clip=3.0, **CLIP)
    dirty = clipped_policy_loss(*map(batch.poisoned, (new, old, advantages)), dual_clip=3.0, **CLIP)
    for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"):
        counts = {"mode": mode, "num_tokens": 5, "num_sequences": 3}
        assert torch.equal(aggregate(clean, batch.mask, **counts), aggregate(dirty, batch.mask, **counts))
