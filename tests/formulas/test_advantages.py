"""Advantages and returns, against hand-worked numbers, slow loops in double precision, and invariances."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ippo_cli.formulas import (
    gae,
    group_normalized,
    leave_one_out,
    place_scores,
    pool_values,
    reward_to_go,
    turn_ends,
    turn_gae,
)

SEEDS = st.integers(0, 2**32 - 1)
DISCOUNTS = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])
FEW = settings(max_examples=30, deadline=None)


def close(actual: Tensor, expected: Tensor | list) -> None:
    """Assert equality within 1e-5, for any dtype."""
    torch.testing.assert_close(actual.double(), torch.as_tensor(expected, dtype=torch.float64), atol=1e-5, rtol=1e-5)


# gae


def test_gae_of_three_tokens_by_hand() -> None:
    rewards, values = torch.tensor([[0.0, 0.0, 1.0, 0.0]]), torch.tensor([[0.5, 0.6, 0.7, 0.0]])
    mask = torch.tensor([[1, 1, 1, 0]])
    advantages, returns = gae(rewards, values, mask, gamma=0.9, gae_lambda=0.5)
    # delta = .04 .03 .3;  A_2 = .3, A_1 = .03 + .45 * .3 = .165, A_0 = .04 + .45 * .165 = .11425
    close(advantages, [[0.11425, 0.165, 0.3, 0.0]])
    close(returns, [[0.61425, 0.765, 1.0, 0.0]])


def test_gae_does_not_discount_across_hole() -> None:
    rewards, values = torch.tensor([[0.0, 9.0, 9.0, 1.0]]), torch.tensor([[0.5, 9.0, 9.0, 0.7]])
    advantages, returns = gae(rewards, values, torch.tensor([[1, 0, 0, 1]]), gamma=0.9, gae_lambda=0.5)
    # delta_0 = .9 * .7 - .5 = .13, delta_3 = .3;  A_0 = .13 + .45 * .3
    close(advantages, [[0.265, 0.0, 0.0, 0.3]])
    close(returns, [[0.765, 0.0, 0.0, 1.0]])


@FEW
@given(seed=SEEDS, gamma=DISCOUNTS, lam=DISCOUNTS)
def test_gae_matches_loop(ragged, loop_gae, seed: int, gamma: float, lam: float) -> None:
    batch = ragged(seed)
    rewards, values = batch.noise(), batch.noise()
    actual = gae(rewards, values, batch.mask, gamma=gamma, gae_lambda=lam)
    for result, expected in zip(actual, loop_gae(rewards, values, batch.mask, gamma, lam), strict=True):
        close(result, expected)


@pytest.mark.parametrize("width", [127, 128, 129, 300])
def test_gae_matches_loop_across_blocks(ragged, loop_gae, width: int) -> None:
    batch = ragged(width, rows=3, width=width)
    batch.mask[0] = torch.arange(width) % 140 < 3  # holes wider than a block
    rewards, values = batch.noise(), batch.noise()
    actual = gae(rewards, values, batch.mask, gamma=0.99, gae_lambda=0.95)
    for result, expected in zip(actual, loop_gae(rewards, values, batch.mask, 0.99, 0.95), strict=True):
        close(result, expected)


def test_gae_with_lambda_per_row(ragged, loop_gae) -> None:
    batch = ragged(3)
    rewards, values = batch.noise(), batch.noise()
    lambdas = torch.tensor([0.0, 0.5, 0.9, 1.0])
    advantages, returns = gae(rewards, values, batch.mask, gamma=0.9, gae_lambda=lambdas)
    for row, lam in enumerate(lambdas.tolist()):
        one = slice(row, row + 1)
        expected = loop_gae(rewards[one], values[one], batch.mask[one], 0.9, lam)
        close(advantages[one], expected[0])
        close(returns[one], expected[1])


@FEW
@given(seed=SEEDS)
def test_gae_with_gamma_and_lambda_one_is_return_minus_value(ragged, seed: int) -> None:
    batch = ragged(seed)
    rewards, values = batch.zeroed(), batch.zeroed()
    to_go = rewards.flip(1).cumsum(1).flip(1)
    advantages, returns = gae(rewards, values, batch.mask, gamma=1.0, gae_lambda=1.0)
    close(advantages, torch.where(batch.mask, to_go - values, 0.0))
    close(returns, torch.where(batch.mask, to_go, 0.0))


def test_return_of_single_turn_is_score(ragged) -> None:
    mask = torch.arange(6)[None] < torch.tensor([[6], [4], [1]])
    turn = torch.where(mask, 0, -1)
    rewards = place_scores(torch.tensor([[2.0], [-1.5], [0.25]]), mask, turn)
    _, returns = gae(rewards, ragged(0, rows=3, width=6).noise(), mask, gamma=1.0, gae_lambda=1.0)
    close(returns, mask * torch.tensor([[2.0], [-1.5], [0.25]]))


@FEW
@given(seed=SEEDS, gamma=DISCOUNTS, lam=DISCOUNTS)
def test_gae_with_holes_matches_compacted_rows(ragged, seed: int, gamma: float, lam: float) -> None:
    batch = ragged(seed)
    rewards, values = batch.noise(), batch.noise()
    actual = gae(rewards, values, batch.mask, gamma=gamma, gae_lambda=lam)
    for row, own in enumerate(batch.mask):
        dense = torch.ones(1, int(own.sum()))
        expected = gae(rewards[row, own][None], values[row, own][None], dense, gamma=gamma, gae_lambda=lam)
        close(actual[0][row, own], expected[0][0])
        close(actual[1][row, own], expected[1][0])


@FEW
@given(seed=SEEDS, extra=st.integers(0, 5))
def test_results_independent_of_padding(ragged, seed: int, extra: int) -> None:
    batch = ragged(seed)
    rewards, values, width = batch.zeroed(), batch.zeroed(), batch.mask.shape[1]
    dirty = [torch.nn.functional.pad(batch.poisoned(x), (0, extra), value=torch.nan) for x in (rewards, values)]
    mask = torch.nn.functional.pad(batch.mask, (0, extra))
    turn = torch.nn.functional.pad(batch.turn, (0, extra), value=-1)
    settings_ = {"gamma": 0.9, "gae_lambda": 0.8}
    pairs = [(gae(rewards, values, batch.mask, **settings_), gae(*dirty, mask, **settings_))]
    for where in ("first", "mean", "final"):
        clean = turn_gae(rewards, values, batch.mask, batch.turn, turn_value=where, **settings_)
        pairs.append((clean, turn_gae(*dirty, mask, turn, turn_value=where, **settings_)))
    pairs.append(((reward_to_go(rewards, batch.mask, gamma=0.9),), (reward_to_go(dirty[0], mask, gamma=0.9),)))
    for clean, other in pairs:
        for a, b in zip(clean, other, strict=True):
            assert torch.equal(a, b[:, :width])
            assert not b[~mask].any()


def test_gae_keeps_inputs_and_has_no_gradient(ragged) -> None:
    batch = ragged(5)
    rewards, values = batch.noise(), batch.noise().requires_grad_()
    before = rewards.clone(), values.detach().clone(), batch.mask.clone()
    advantages, returns = gae(rewards, values, batch.mask, gamma=0.9, gae_lambda=0.9)
    assert not advantages.requires_grad
    assert not returns.requires_grad
    for argument, copy in zip((rewards, values, batch.mask), before, strict=True):
        assert torch.equal(argument, copy)


def test_gae_dtype(ragged) -> None:
    batch = ragged(6)
    for given_, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        rewards, values = batch.noise().to(given_), batch.noise().to(given_)
        assert gae(rewards, values, batch.mask, gamma=0.9, gae_lambda=0.9)[0].dtype == expected


def test_empty_tensors() -> None:
    for shape in ((2, 0), (0, 3)):
        x, mask, turn = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.long)
        assert gae(x, x, mask, gamma=1.0, gae_lambda=1.0)[0].shape == shape
        for where in ("first", "mean", "final"):
            assert turn_gae(x, x, mask, turn, gamma=1.0, gae_lambda=1.0, turn_value=where)[1].shape == shape
        assert reward_to_go(x, mask, gamma=1.0).shape == shape
        assert place_scores(torch.ones(shape[0], 1), mask, turn).shape == shape


def test_gae_speed() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.rand(4096, 4096, generator=generator) for _ in range(2))
    mask = rewards < 0.8
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on busy cores a second thread mostly waits
    try:
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            gae(rewards, values, mask, gamma=0.99, gae_lambda=0.95)
            seconds.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    assert min(seconds) < 3.0, seconds


# turn_gae

TWO_TURNS = torch.tensor([[0, 0, -1, 1, 1, -1]])
OWN = TWO_TURNS >= 0
TURN_REWARDS = torch.tensor([[0.5, 0.5, 7.0, 0.0, 2.0, 7.0]])
TURN_VALUES = torch.tensor([[0.2, 0.6, 7.0, 0.8, 1.2, 7.0]])


@pytest.mark.parametrize(
    ("where", "value_0", "value_1"), [("first", 0.2, 0.8), ("mean", 0.4, 1.0), ("final", 0.6, 1.2)]
)
def test_turn_gae_of_two_turns_by_hand(where: str, value_0: float, value_1: float) -> None:
    advantages, returns = turn_gae(
        TURN_REWARDS, TURN_VALUES, OWN, TWO_TURNS, gamma=0.9, gae_lambda=0.5, turn_value=where
    )
    later = 2.0 - value_1
    earlier = 1.0 + 0.9 * value_1 - value_0 + 0.45 * later
    close(advantages, [[earlier, earlier, 0.0, later, later, 0.0]])
    close(returns, [[earlier + value_0] * 2 + [0.0] + [later + value_1] * 2 + [0.0]])


@FEW
@given(seed=SEEDS, gamma=DISCOUNTS, lam=DISCOUNTS, where=st.sampled_from(["first", "mean", "final"]))
def test_turn_gae_matches_loop(ragged, loop_gae, seed: int, gamma: float, lam: float, where: str) -> None:
    batch = ragged(seed)
    rewards, values = batch.noise(), batch.noise()
    actual = turn_gae(rewards, values, batch.mask, batch.turn, gamma=gamma, gae_lambda=lam, turn_value=where)
    for row in range(batch.mask.shape[0]):
        turns = sorted({k for k in batch.turn[row].tolist() if k >= 0})
        spans = [(batch.turn[row] == k).nonzero().flatten() for k in turns]
        pick = {"first": lambda v: v[0], "mean": lambda v: v.double().mean(), "final": lambda v: v[-1]}[where]
        unit_rewards = torch.tensor([[rewards[row, span].double().sum().item() for span in spans]], dtype=torch.float64)
        unit_values = torch.tensor([[pick(values[row, span]).item() for span in spans]], dtype=torch.float64)
        units = loop_gae(unit_rewards, unit_values, torch.ones(1, len(spans)), gamma, lam)
        for result, unit in zip(actual, units, strict=True):
            expected = torch.zeros(batch.mask.shape[1], dtype=torch.float64)
            for span, number in zip(spans, unit[0], strict=True):
                expected[span] = number
            close(result[row], expected)


def test_turn_gae_with_one_token_per_turn_equals_gae(ragged) -> None:
    batch = ragged(9)
    each_its_own = torch.where(batch.mask, batch.mask.cumsum(1) - 1, -1)
    rewards, values = batch.noise(), batch.noise()
    expected = gae(rewards, values, batch.mask, gamma=0.9, gae_lambda=0.8)
    for where in ("first", "mean", "final"):
        actual = turn_gae(rewards, values, batch.mask, each_its_own, gamma=0.9, gae_lambda=0.8, turn_value=where)
        for a, b in zip(actual, expected, strict=True):
            close(a, b)


def test_unknown_turn_value_rejected() -> None:
    with pytest.raises(ValueError, match="turn_value=last; must be one of first mean final"):
        turn_gae(TURN_REWARDS, TURN_VALUES, OWN, TWO_TURNS, gamma=1.0, gae_lambda=1.0, turn_value="last")


def test_action_token_without_turn_rejected() -> None:
    with pytest.raises(ValueError, match="turn=-1 on an action token"):
        turn_gae(TURN_REWARDS, TURN_VALUES, OWN | True, TWO_TURNS, gamma=1.0, gae_lambda=1.0, turn_value="mean")


# pool_values and turn_ends


@pytest.mark.parametrize(
    ("where", "value_0", "value_1"), [("first", 0.2, 0.8), ("mean", 0.4, 1.0), ("final", 0.6, 1.2)]
)
def test_pool_values_by_hand(where: str, value_0: float, value_1: float) -> None:
    pooled = pool_values(TURN_VALUES, OWN, TWO_TURNS, turn_value=where)
    close(pooled, [[value_0, value_0, 0.0, value_1, value_1, 0.0]])


@FEW
@given(seed=SEEDS, where=st.sampled_from(["first", "mean", "final"]))
def test_turn_gae_of_pooled_values_ignores_nan(ragged, seed: int, where: str) -> None:
    batch = ragged(seed)
    rewards, values = batch.noise(), batch.noise()
    settings_ = {"gamma": 0.9, "gae_lambda": 0.8, "turn_value": where}
    pooled = pool_values(batch.poisoned(values), batch.mask, batch.turn, turn_value=where)
    assert not pooled[~batch.mask].any()
    pairs = zip(
        turn_gae(rewards, values, batch.mask, batch.turn, **settings_),
        turn_gae(rewards, pooled, batch.mask, batch.turn, **settings_),
        strict=True,
    )
    for plain, from_pooled in pairs:
        close(from_pooled, plain)


@pytest.mark.parametrize("where", ["first", "mean", "final"])
def test_pooled_values_match_finite_differences(where: str) -> None:
    values = TURN_VALUES.double().requires_grad_()
    weights = torch.linspace(-1.0, 2.0, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda v: (pool_values(v, OWN, TWO_TURNS, turn_value=where) * weights).sum(), (values,)
    )


@FEW
@given(seed=SEEDS)
def test_turn_ends_marks_last_token_of_each_turn(ragged, seed: int) -> None:
    batch = ragged(seed)
    ends = turn_ends(batch.mask, batch.turn)
    for row in range(batch.mask.shape[0]):
        turns = {k for k in batch.turn[row].tolist() if k >= 0}
        expected = {max(t for t, k in enumerate(batch.turn[row].tolist()) if k == turn) for turn in turns}
        assert set(ends[row].nonzero().flatten().tolist()) == expected


# reward_to_go and place_scores


def test_reward_to_go_by_hand() -> None:
    close(reward_to_go(torch.tensor([[1.0, 2.0, 4.0]]), torch.ones(1, 3), gamma=0.5), [[3.0, 4.0, 4.0]])
    holed = reward_to_go(torch.tensor([[1.0, 9.0, 2.0, 9.0, 4.0]]), torch.tensor([[1, 0, 1, 0, 1]]), gamma=0.5)
    close(holed, [[3.0, 0.0, 4.0, 0.0, 4.0]])


@FEW
@given(seed=SEEDS, gamma=DISCOUNTS)
def test_reward_to_go_matches_loop(ragged, seed: int, gamma: float) -> None:
    batch = ragged(seed)
    rewards = batch.noise()
    actual = reward_to_go(rewards, batch.mask, gamma=gamma)
    for row, own in enumerate(batch.mask):
        kept = rewards[row, own].tolist()
        expected = [sum(gamma**i * r for i, r in enumerate(kept[start:])) for start in range(len(kept))]
        close(actual[row, own], expected)
        assert not actual[row, ~own].any()


def test_place_scores_on_last_token_of_turn() -> None:
    turn = torch.tensor([[0, 0, -1, 1, 1, -1], [-1, 1, 1, -1, 2, -1], [-1, -1, -1, -1, -1, -1]])
    score = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    expected = [[0, 1, 0, 0, 2, 0], [0, 0, 5, 0, 6, 0], [0, 0, 0, 0, 0, 0]]
    assert place_scores(score, turn >= 0, turn).tolist() == expected


def test_place_scores_ignores_turn_without_tokens() -> None:
    turn = torch.tensor([[1, 1, -1]])
    placed = place_scores(torch.tensor([[torch.nan, 3.0, torch.nan]]), turn >= 0, turn)
    assert placed.tolist() == [[0.0, 3.0, 0.0]]


def test_more_turns_than_scores_rejected() -> None:
    with pytest.raises(ValueError, match=r"score has 1 column\(s\), but a row has turn 1"):
        place_scores(torch.ones(1, 1), OWN, TWO_TURNS)


# groups

SCORE = torch.tensor([0.0, 10.0, 1.0, 30.0, 2.0])
GROUP = torch.tensor([7, -2, 7, -2, 7])


def test_group_estimators_by_hand() -> None:
    root = 200**0.5
    close(group_normalized(SCORE, GROUP), [-1.0, -10 / root, 0.0, 10 / root, 1.0])
    close(group_normalized(SCORE, GROUP, scale_by_std=False), [-1.0, -10.0, 0.0, 10.0, 1.0])
    close(leave_one_out(SCORE, GROUP), [-1.5, -20.0, 0.0, 20.0, 1.5])


@FEW
@given(seed=SEEDS)
def test_group_estimators_match_loop(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    group = torch.randint(-3, 3, (7,), generator=generator).repeat(2)[torch.randperm(14, generator=generator)]
    score = torch.randn(14, generator=generator)
    normalized, centered, loo = torch.zeros(3, 14, dtype=torch.float64)
    for row in range(14):
        mine = score[group == group[row]].double()
        others = score[(group == group[row]) & (torch.arange(14) != row)].double()
        centered[row] = score[row].double() - mine.mean()
        normalized[row] = centered[row] / (mine.std() + 1e-6)
        loo[row] = score[row].double() - others.mean()
    close(group_normalized(score, group), normalized)
    close(group_normalized(score, group, scale_by_std=False), centered)
    close(leave_one_out(score, group), loo)


@pytest.mark.parametrize("value", [0.1, 1 / 3, -0.7, 12345.678])
@pytest.mark.parametrize("size", [2, 3, 5, 64])
def test_equal_scores_have_zero_advantage(value: float, size: int) -> None:
    score, group = torch.full((size,), value), torch.zeros(size, dtype=torch.long)
    assert not group_normalized(score, group).any()
    assert not group_normalized(score, group, scale_by_std=False).any()
    assert not leave_one_out(score, group).any()


def test_group_of_one_rejected() -> None:
    score, group = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4, 9, 4])
    for estimator in (
        group_normalized,
        leave_one_out,
        lambda s, g: group_normalized(s, g, scale_by_std=False),
    ):
        with pytest.raises(ValueError, match=r"group 9 has one row; .* use rollout.num_generations >= 2"):
            estimator(score, group)
