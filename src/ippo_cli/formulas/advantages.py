"""Advantages and returns: over tokens (GAE, reward-to-go), over turns, and over groups of responses to one prompt.

Results carry no gradient. Shapes are `[B, R]` unless noted; column `t` is the state before token `t`; positions off
`response_mask` (padding, observation spans) are skipped.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ippo_cli.formulas.masked import as_real, keep, turn_slots, turn_totals
from ippo_cli.formulas.shapes import Labels, Mask, Rows, TokenMask, Tokens, TurnNumbers, Turns

# Columns per step of the backward pass: wide enough for few small operations, narrow enough to stay in cache.
BLOCK = 128
TURN_VALUES = ("first", "mean", "final")


@torch.no_grad()
def gae(
    rewards: Tokens, values: Tokens, response_mask: Mask, *, gamma: float, gae_lambda: float | Rows
) -> tuple[Tokens, Tokens]:
    """Generalised advantages and their returns over action tokens, `(advantages, returns)`, not whitened.

    `delta_t = r_t + gamma V_next - V_t`, `A_t = delta_t + gamma lambda A_next`, `returns = A + V`, where *next* is the
    row's next action token: masked positions between them are not discounted. After the last action token `V_next =
    A_next = 0`. Rewards and values off the mask are ignored, and results there are 0. `gae_lambda` is a float, or `[B]`
    for one lambda per row. Work is O(BR), in float32 or better.

    With gamma = lambda = 1, rewards 0 0 1 and values .5 .6 .7: advantages .5 .4 .3, returns 1 1 1.

    Source: Schulman et al. 2016 (arXiv 1506.02438), eq. 16, and PPO (arXiv 1707.06347), eq. 11 and 12; a lambda per row
    as in VAPO (arXiv 2504.05118).
    """
    rewards, values = as_real(rewards), as_real(values)
    dtype = torch.promote_types(rewards.dtype, values.dtype)
    decay = gamma * torch.as_tensor(gae_lambda, dtype=torch.float64, device=values.device)
    advantages = torch.empty(values.shape, dtype=dtype, device=values.device)
    returns = torch.empty_like(advantages)
    next_value = next_advantage = advantages.new_zeros(values.shape[0])
    for stop in range(values.shape[1], 0, -BLOCK):
        columns = slice(max(stop - BLOCK, 0), stop)
        own = _transpose(response_mask[:, columns].bool())
        reward = _transpose(rewards[:, columns])
        value = torch.where(own, _transpose(values[:, columns]), 0.0)
        # Off the mask both recurrences copy the value from the right: factor 1, term 0.
        ahead = torch.cat([value.to(dtype), next_value[None]])
        next_value = _reverse_scan(ahead[:-1], (~own).to(dtype), next_value)
        delta = torch.where(own, reward + gamma * ahead[1:] - value, 0.0)
        factor = decay.to(dtype).expand_as(delta).masked_fill(~own, 1.0)
        next_advantage = _reverse_scan(delta, factor, next_advantage)
        advantage = torch.where(own, delta, 0.0)
        advantages[:, columns] = advantage.t().contiguous()
        returns[:, columns] = (advantage + value).t().contiguous()
    return advantages, returns


@torch.no_grad()
def turn_gae(
    rewards: Tokens,
    values: Tokens,
    response_mask: Mask,
    turn: TurnNumbers,
    *,
    gamma: float,
    gae_lambda: float | Rows,
    turn_value: str,
) -> tuple[Tokens, Tokens]:
    """GAE with one action per turn, broadcast back to the turn's action tokens: `(advantages, returns)`.

    For turn k of a row, `r_k` is the sum of the rewards on its action tokens and `V_k` is the value at its first own
    token (`turn_value="first"`), the mean over them (`"mean"`), or the value at the last (`"final"`); then `gae` runs
    over the turns in order of their number. A turn number without action tokens is skipped. `turn` is the turn number
    of each action token, from 0; it is ignored off the mask.

    Source: the recurrence of `gae` over the semi-Markov steps of a dialogue (Sutton, Precup and Singh 1999, options),
    as in ArCHer (arXiv 2402.19446), which treats utterances as actions.
    """
    slots, turns = turn_slots(response_mask, turn)
    turn_rewards, counts = turn_totals(rewards, response_mask, slots, turns)
    turn_values = _pool_turn_values(values, response_mask, slots, turns, turn_value)
    results = gae(turn_rewards, turn_values, counts > 0, gamma=gamma, gae_lambda=gae_lambda)
    advantages, returns = (keep(result.gather(1, slots), response_mask) for result in results)
    return advantages, returns


@torch.no_grad()
def segment_gae(
    rewards: Tokens, values: Tokens, response_mask: Mask, starts: Mask, *, gamma: float, gae_lambda: float
) -> tuple[Tokens, Tokens]:
    """GAE over segments of action tokens, broadcast to the tokens of each segment: `(advantages, returns)`.

    A segment begins at an action token in `starts`, of which the value is known, and ends before the next one. For
    segment k of `n_k` action tokens that begins at token `c`, `R_k = sum_i gamma^i r_{c+i}`, `delta_k = R_k +
    gamma^{n_k} V_{k+1} - V_k` and `A_k = delta_k + gamma^{n_k} lambda A_{k+1}`; both are 0 after the last segment.
    `returns = A + V`. Values off `starts` are ignored. Action tokens before the first segment of a row give 0.

    With gamma = 1, lambda = 0, rewards 0 0 1 and values .5 and .7 at the first and third token: advantages .2 .2 .3.

    Source: VinePPO (Kazemnejad et al. 2024, arXiv 2410.01679), section 4, is lambda = 0; lambda as in `gae`.
    """
    rewards, values = as_real(rewards), as_real(values)
    own, begins = response_mask.bool(), starts.bool() & response_mask.bool()
    slots = begins.cumsum(dim=1) - 1
    own = own & (slots >= 0)
    slots, segments = turn_slots(own, slots)
    number = own.cumsum(dim=1) - 1  # of each action token in its row
    first, _ = turn_totals(number.to(values.dtype), begins, slots, segments)
    place = number - first.gather(1, slots)  # of each action token in its segment
    earned, counts = turn_totals(rewards * gamma ** keep(place, own), own, slots, segments)
    own_values, _ = turn_totals(values, begins, slots, segments)
    factors = gamma**counts
    next_value = next_advantage = values.new_zeros(values.shape[0])
    advantages = torch.zeros_like(own_values)
    for k in reversed(range(segments)):
        delta = earned[:, k] + factors[:, k] * next_value - own_values[:, k]
        is_segment = counts[:, k] > 0
        next_advantage = torch.where(is_segment, delta + factors[:, k] * gae_lambda * next_advantage, 0.0)
        next_value = own_values[:, k]
        advantages[:, k] = next_advantage
    spread = [keep(result.gather(1, slots), own) for result in (advantages, advantages + own_values)]
    return spread[0], spread[1]


def pool_values(values: Tokens, response_mask: Mask, turn: TurnNumbers, *, turn_value: str) -> Tokens:
    """The value of each action token's turn, `[B, R]`: that of its first action token, their mean, or that of its last.

    The turn values of `turn_gae`, on every action token of the turn; 0 off the mask. Gradients flow.
    """
    slots, turns = turn_slots(response_mask, turn)
    pooled = _pool_turn_values(values, response_mask, slots, turns, turn_value)
    return keep(pooled.gather(1, slots), response_mask)


def turn_ends(response_mask: Mask, turn: TurnNumbers) -> TokenMask:
    """Mask `[B, R]` of the last action token of each turn: one position per action where turns are the actions."""
    slots, turns = turn_slots(response_mask, turn)
    return response_mask.bool() & _turn_boundary_mask(response_mask, slots, turns, last=True)


@torch.no_grad()
def reward_to_go(rewards: Tokens, response_mask: Mask, *, gamma: float) -> Tokens:
    """Discounted sum of current and later rewards: `G_t = r_t + gamma G_next` over action tokens, 0 off the mask.

    Masked positions between action tokens are not discounted. Rewards 1 2 4 at gamma = 0.5 give 3 4 4.

    Source: REINFORCE++ (Hu 2025, arXiv 2501.03262); the estimator is GAE without a critic at lambda = 1.
    """
    return gae(rewards, torch.zeros_like(rewards), response_mask, gamma=gamma, gae_lambda=1.0)[0]


@torch.no_grad()
def place_scores(score: Turns, response_mask: Mask, turn: TurnNumbers) -> Tokens:
    """Rewards `[B, R]` with `score[:, k]` on the last action token of turn k, and 0 elsewhere.

    `score` is `[B, K]`. A row without an action token in turn k ignores its score; a turn on the mask without a column
    in `score` raises `ValueError`.
    """
    slots, turns = turn_slots(response_mask, turn)
    if turns > score.shape[1]:
        raise ValueError(f"score has {score.shape[1]} column(s), but a row has turn {turns - 1}; give one per turn")
    here = _turn_boundary_mask(response_mask, slots, turns, last=True)
    return keep(score.gather(1, slots), here)


@torch.no_grad()
def group_normalized(score: Rows, group: Labels, *, scale_by_std: bool = True) -> Rows:
    """Each score against its group: `(s - mean_g) / (std_g + 1e-6)`, or `s - mean_g` without the scale; `[B]`.

    `group` `[B]` holds integer labels, in any order and of unequal sizes; `std` is unbiased. Exactly 0 where all scores
    of a group are equal. A group of one has no baseline and raises `ValueError`. Scores 0 1 2 give -1 0 1.

    Source: GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.2); without the scale, Dr. GRPO (arXiv 2503.20783).
    """
    centered, slots, sizes = _center_by_group(score, group)
    if not scale_by_std:
        return centered
    squares = torch.zeros_like(sizes).scatter_add(0, slots, centered.square())
    std = (squares / (sizes - 1)).sqrt()
    return centered / (std[slots] + 1e-6)


@torch.no_grad()
def leave_one_out(score: Rows, group: Labels) -> Rows:
    """Each score less the mean of the *other* scores of its group: `n / (n - 1) * (s - mean_g)`; `[B]`.

    Labels, equal scores and groups of one as in `group_normalized`. Scores 0 1 2 give -1.5 0 1.5.

    Source: RLOO (Ahmadian et al. 2024, arXiv 2402.14740), after Kool et al. 2019.
    """
    centered, slots, sizes = _center_by_group(score, group)
    return centered * (sizes / (sizes - 1))[slots]


@torch.no_grad()
def role_baseline(returns: Rows, *, start: float, decay: float) -> tuple[Rows, float]:
    """The running mean before each return, `[B]`, and the one after the last: `b_i = decay b_{i-1} + (1 - decay) R_i`.

    The baseline of return i is `b_{i-1}`, which does not depend on it, so that `R_i - b_{i-1}` is unbiased. Returns
    1 3 with start 0 and decay .5 have the baselines 0 .5, and 1.75 is the one after them. In float64.

    Source: role-conditioned advantage estimation, SPIRAL (arXiv 2506.24119), in the order of the released code, which
    subtracts the mean before it adds the return; the other order multiplies all advantages by `decay`.
    """
    baselines, mean = [], start
    for number in returns.double().tolist():
        baselines.append(mean)
        mean = decay * mean + (1.0 - decay) * number
    return torch.tensor(baselines, dtype=torch.float64, device=returns.device).to(returns.dtype), mean


def _transpose(x: Tensor) -> Tensor:
    """`[B, n]` as contiguous `[n, B]`; torch transposes contiguous matrices several times faster than slices."""
    return x.contiguous().t().contiguous()


def _reverse_scan(x: Tensor, factor: Tensor, carry: Tensor) -> Tensor:
    """`x[t] += factor[t] * x[t + 1]`, in place, from the last row to the first; `carry` is the value after the last."""
    for row, by in zip(reversed(x.unbind(0)), reversed(factor.unbind(0)), strict=True):
        carry = row.addcmul_(by, carry)
    return carry


def _pool_turn_values(values: Tensor, response_mask: Tensor, slots: Tensor, turns: int, turn_value: str) -> Tensor:
    """The value of each turn, `[B, K]`; 0 for a number without action tokens."""
    if turn_value not in TURN_VALUES:
        raise ValueError(f"turn_value={turn_value}; must be one of {' '.join(TURN_VALUES)}")
    if turn_value == "mean":
        totals, counts = turn_totals(values, response_mask, slots, turns)
        return totals / counts.clamp(min=1)
    here = response_mask.bool() & _turn_boundary_mask(response_mask, slots, turns, last=turn_value == "final")
    return turn_totals(values, here, slots, turns)[0]


def _turn_boundary_mask(response_mask: Tensor, slots: Tensor, turns: int, *, last: bool) -> Tensor:
    """Mask `[B, R]` of the first or the last action token of each turn; `slots` and `turns` come from `turn_slots`."""
    own = response_mask.bool()
    rows, width = own.shape
    columns = torch.arange(width, device=own.device).expand(rows, width)
    nowhere = -1 if last else width
    ends = slots.new_full((rows, turns), nowhere).scatter_reduce(
        1, slots, torch.where(own, columns, nowhere), "amax" if last else "amin"
    )
    return ends.gather(1, slots) == columns


def _center_by_group(score: Tensor, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores less their group's mean `[B]`, the group's index of each row `[B]`, and the groups' sizes (as floats).

    The mean is taken of the distances to the group's smallest score, which are exactly 0 when all are equal.
    """
    labels, slots, counts = torch.unique(group, return_inverse=True, return_counts=True)
    if (counts < 2).any():
        alone = labels[counts < 2][0].item()
        raise ValueError(
            f"group {alone} has one row; a group baseline needs two or more: "
            "use rollout.num_generations >= 2, or an estimator without groups (gae, reinforce_plus_plus, remax)"
        )
    score = as_real(score)
    sizes = counts.to(score.dtype)
    smallest = torch.full_like(sizes, torch.inf).scatter_reduce(0, slots, score, "amin")
    distance = score - smallest[slots]
    means = torch.zeros_like(sizes).scatter_add(0, slots, distance) / sizes
    return distance - means[slots], slots, sizes
