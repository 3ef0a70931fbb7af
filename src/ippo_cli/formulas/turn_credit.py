"""Credit of single turns against alternatives that are sampled in the same state; shapes `[B, K]` by turn."""

from __future__ import annotations

import torch

from ippo_cli.formulas.masked import as_real
from ippo_cli.formulas.shapes import AlternativeMask, Alternatives, TurnMask, Turns


@torch.no_grad()
def score_to_go(score: Turns, *, gamma: float) -> Turns:
    """Discounted sum of the scores of a turn and of later turns: `G_k = s_k + gamma G_{k+1}`.

    Scores 1 2 4 at gamma = 0.5 give 3 4 4.
    """
    returns = as_real(score).clone()
    for turn in range(returns.shape[1] - 2, -1, -1):
        returns[:, turn] += gamma * returns[:, turn + 1]
    return returns


@torch.no_grad()
def alternative_baseline(returns: Alternatives, known: AlternativeMask) -> tuple[Turns, TurnMask]:
    """The mean return of the known alternatives to each turn, and the turns with any: `b_k = mean over m of G_k^m`.

    `returns` `[B, K, M]` are the returns from turn k of the episodes in which alternative m replaces the turn. 0 for
    turns without a known alternative. The turn itself is not among them: with it, the credit would be scaled by
    M / (M + 1) (leave-one-out, as `leave_one_out` over one group).

    Source: C3 (arXiv 2603.06859); leave-one-out after Kool et al. 2019, "Buy 4 REINFORCE samples".
    """
    count = known.sum(dim=2)
    total = torch.where(known, as_real(returns), 0.0).sum(dim=2)
    return total / count.clamp(min=1), count > 0


@torch.no_grad()
def turn_credit(returns: Turns, baseline: Turns, measured: TurnMask) -> Turns:
    """The credit of each turn: `c_k = G_k - b_k`; 0 for turns that are not measured.

    The baseline is independent of the turn's action in the state before it, so `grad log pi(a_k) c_k` has the same
    expectation as `grad log pi(a_k) G_k`.
    """
    return torch.where(measured, as_real(returns) - as_real(baseline), 0.0)


@torch.no_grad()
def telescope_credit(credit: Turns, *, gamma: float) -> Turns:
    """The scores that sum to the credit of each turn, discounted, from this turn on: `s'_k = c_k - gamma c_{k+1}`.

    The inverse of `score_to_go`: an estimator that sums later scores gives turn k its own credit only. With `c = G - b`
    it is `s_k - b_k + gamma b_{k+1}`: potential-based shaping (Ng, Harada and Russell 1999) with the potential b.
    """
    credit = as_real(credit)
    later = torch.cat([credit[:, 1:], torch.zeros_like(credit[:, :1])], dim=1)
    return credit - gamma * later
