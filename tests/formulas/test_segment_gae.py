"""GAE over segments: hand numbers, a direct sum per segment, and the formulas that it contains as special cases."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ippo_cli.formulas import gae, reward_to_go, segment_gae, turn_gae

SEEDS = st.integers(0, 2**31 - 1)
DISCOUNTS = st.sampled_from([0.0, 0.5, 0.9, 1.0])
FEW = settings(max_examples=25, deadline=None)


def close(actual: Tensor, expected: Tensor | list) -> None:
    torch.testing.assert_close(actual.double(), torch.as_tensor(expected).double(), atol=1e-5, rtol=1e-5)


def sum_by_segment(
    rewards: Tensor, values: Tensor, mask: Tensor, starts: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """The sum of all later errors of each segment, without a recurrence."""
    advantages, returns = torch.zeros(mask.shape).double(), torch.zeros(mask.shape).double()
    for row in range(len(mask)):
        own = mask[row].nonzero()[:, 0].tolist()
        first = [place for place, column in enumerate(own) if starts[row, column]]
        bounds = list(pairwise([*first, len(own)]))
        errors = []
        for number, (begin, end) in enumerate(bounds):
            earned = sum(gamma ** (place - begin) * rewards[row, own[place]].item() for place in range(begin, end))
            later = values[row, own[end]].item() if number + 1 < len(first) else 0.0
            errors.append(earned + gamma ** (end - begin) * later - values[row, own[begin]].item())
        for number, (begin, end) in enumerate(bounds):
            found = sum(
                lam ** (later - number) * gamma ** (first[later] - begin) * errors[later]
                for later in range(number, len(first))
            )
            for place in range(begin, end):
                advantages[row, own[place]] = found
                returns[row, own[place]] = found + values[row, own[begin]].item()
    return advantages, returns


def test_two_segments_by_hand() -> None:
    mask = torch.tensor([[1, 1, 0, 1, 1, 0]], dtype=torch.bool)
    starts = torch.tensor([[1, 0, 0, 1, 0, 0]], dtype=torch.bool)
    rewards = torch.tensor([[0.1, 0.2, 9.0, 0.0, 1.0, 9.0]])
    values = torch.tensor([[0.5, 7.0, 7.0, 0.75, 7.0, 7.0]])
    # segment 2: 0 + .5 * 1 - .75 = -.25; segment 1: .1 + .5 * .2 + .25 * .75 - .5 = -.1125
    one_step, returns = segment_gae(rewards, values, mask, starts, gamma=0.5, gae_lambda=0.0)
    close(one_step, [[-0.1125, -0.1125, 0.0, -0.25, -0.25, 0.0]])
    close(returns, [[0.3875, 0.3875, 0.0, 0.5, 0.5, 0.0]])
    later = -0.1125 + 0.25 * 0.5 * -0.25
    advantages, _ = segment_gae(rewards, values, mask, starts, gamma=0.5, gae_lambda=0.5)
    close(advantages, [[later, later, 0.0, -0.25, -0.25, 0.0]])


def test_docstring_example() -> None:
    advantages, _ = segment_gae(
        torch.tensor([[0.0, 0.0, 1.0]]),
        torch.tensor([[0.5, 0.0, 0.7]]),
        torch.ones(1, 3),
        torch.tensor([[1, 0, 1]]),
        gamma=1.0,
        gae_lambda=0.0,
    )
    close(advantages, [[0.2, 0.2, 0.3]])


@FEW
@given(seed=SEEDS, gamma=DISCOUNTS, lam=DISCOUNTS)
def test_matches_direct_sum(ragged, seed: int, gamma: float, lam: float) -> None:
    batch = ragged(seed)
    rewards, values, starts = batch.noise(), batch.noise(), batch.noise() > 0.3
    found = segment_gae(rewards, values, batch.mask, starts, gamma=gamma, gae_lambda=lam)
    expected = sum_by_segment(rewards, values, batch.mask, starts & batch.mask, gamma, lam)
    for actual, wanted in zip(found, expected, strict=True):
        close(actual, wanted)


@FEW
@given(seed=SEEDS, gamma=DISCOUNTS, lam=DISCOUNTS)
def test_segment_per_token_is_gae(ragged, seed: int, gamma: float, lam: float) -> None:
    batch = ragged(seed)
    rewards, values = batch.noise(), batch.noise()
    found = segment_gae(rewards, values, batch.mask, batch.mask, gamma=gamma, gae_lambda=lam)
    for actual, wanted in zip(found, gae(rewards, values, batch.mask, gamma=gamma, gae_lambda=lam), strict=True):
        close(actual, wanted)


@FEW
@given(seed=SEEDS, lam=DISCOUNTS)
def test_segment_per_turn_is_turn_gae_without_discount(ragged, seed: int, lam: float) -> None:
    batch = ragged(seed)
    rewards, values = batch.noise(), batch.noise()
    before = torch.where(batch.mask, batch.turn, -1).cummax(1).values.roll(1, 1)
    before[:, 0] = -1
    found = segment_gae(rewards, values, batch.mask, batch.mask & (batch.turn > before), gamma=1.0, gae_lambda=lam)
    expected = turn_gae(rewards, values, batch.mask, batch.turn, gamma=1.0, gae_lambda=lam, turn_value="first")
    for actual, wanted in zip(found, expected, strict=True):
        close(actual, wanted)


def test_tokens_before_first_segment_are_left_out(ragged) -> None:
    rewards, values = torch.ones(1, 4), torch.full((1, 4), 0.5)
    starts = torch.tensor([[0, 0, 1, 0]], dtype=torch.bool)
    advantages, returns = segment_gae(rewards, values, torch.ones(1, 4), starts, gamma=1.0, gae_lambda=1.0)
    close(advantages, [[0.0, 0.0, 1.5, 1.5]])
    close(returns, [[0.0, 0.0, 2.0, 2.0]])


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_values_and_rewards_elsewhere_are_ignored(ragged, lam: float) -> None:
    batch = ragged(4)
    rewards, values, starts = batch.noise(), batch.noise(), batch.noise() > 0
    clean = segment_gae(rewards, values, batch.mask, starts, gamma=0.9, gae_lambda=lam)
    dirty = segment_gae(
        batch.poisoned(rewards),
        torch.where(starts & batch.mask, values, torch.nan),
        batch.mask,
        starts,
        gamma=0.9,
        gae_lambda=lam,
    )
    for one, other in zip(clean, dirty, strict=True):
        assert torch.equal(one, other)


def test_first_state_with_lambda_one_is_return_minus_value(ragged) -> None:
    batch = ragged(8)
    rewards, values = batch.noise(), batch.noise()
    first = batch.mask & (batch.mask.cumsum(1) == 1)
    starts = first | (batch.noise() > 0.5)
    advantages, _ = segment_gae(rewards, values, batch.mask, starts, gamma=0.9, gae_lambda=1.0)
    expected = reward_to_go(rewards, batch.mask, gamma=0.9) - values
    close(advantages[first], expected[first])


def test_dtype_shape_and_gradient(ragged) -> None:
    batch = ragged(6)
    for given_, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        values = batch.noise().to(given_).requires_grad_()
        found = segment_gae(batch.noise().to(given_), values, batch.mask, batch.mask, gamma=0.9, gae_lambda=0.5)
        assert [(x.dtype, x.requires_grad) for x in found] == [(expected, False)] * 2
    for shape in ((2, 0), (0, 3)):
        x, mask = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
        assert segment_gae(x, x, mask, mask, gamma=1.0, gae_lambda=1.0)[0].shape == shape
