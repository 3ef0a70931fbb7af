"""Ratings of players from the results of their games."""

from __future__ import annotations

import torch

from ippo_cli.formulas.shapes import Games, Players

NEWTON_STEPS = 100
TOLERANCE = 1e-10


def bradley_terry(wins: Games, *, prior: float = 1.0) -> Players:
    """Strengths of N players as natural log-odds, `[N]` float64, relative to the first player.

    `wins[i, j]` is the number of wins of i against j; a draw counts as half a win for both. Under the model i beats j
    with probability `1 / (1 + exp(s_j - s_i))`. The fit maximises the likelihood with `prior` additional drawn games
    between every two players who have met, which keeps the strength of an undefeated player finite. All games have
    equal weight. NaN for players that no chain of games connects with the first.

    9 wins and 1 loss, prior 0: log 9. 1 point of 2 games each way: 0.

    Source: Bradley and Terry 1952; the likelihood as in Hunter 2004 (MM algorithms for generalized Bradley-Terry
    models); drawn games as prior as in Coulom's Bayeselo.
    """
    if not prior >= 0:
        raise ValueError(f"prior={prior}; must be 0 or more: use 1.0")
    wins = wins.double()
    met = (wins + wins.T > 0).fill_diagonal_(False)
    known = _connected_players(met)
    strengths = torch.zeros(len(wins), dtype=torch.float64)
    free = known.clone()
    free[0] = False
    wins = (wins + 0.5 * prior * met) * met * known[:, None] * known[None, :]
    games = wins + wins.T
    for _ in range(NEWTON_STEPS if bool(free.any()) else 0):
        chance = torch.sigmoid(strengths[:, None] - strengths[None, :])
        gradient = (wins - games * chance).sum(dim=1)
        spread = games * chance * (1 - chance)
        hessian = torch.diag(spread.sum(dim=1)) - spread
        step = torch.linalg.solve(hessian[free][:, free], gradient[free])
        strengths[free] += step.clamp(-1.0, 1.0)  # a full Newton step may overshoot
        if float(step.abs().max()) < TOLERANCE:
            break
    return torch.where(known, strengths, torch.nan)


def _connected_players(met: torch.Tensor) -> torch.Tensor:
    """Mask of the players that a chain of games connects with the first player."""
    known = torch.zeros(len(met), dtype=torch.bool)
    known[0] = True
    for _ in range(len(met)):
        known = known | met[known].any(dim=0)
    return known
