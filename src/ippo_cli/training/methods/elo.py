"""Elo ratings of policies and their snapshots, from the games played during training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ippo_cli.engine import distributed
from ippo_cli.formulas import bradley_terry
from ippo_cli.types import Episode

ELO_SCALE = 400.0 / math.log(10.0)  # 400 points are odds of 10 to 1


def snapshot_name(policy: str, iteration: int) -> str:
    """The name of a policy's weights after `iteration` iterations: `policy@iteration`."""
    return f"{policy}@{iteration}"


@dataclass
class GameResults:
    """Results between players: current weights are named by the policy, snapshots `policy@iteration`."""

    counts: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """`counts[first][second]`: games won, drawn and lost by the first player."""

    def add_results(self, first: str, second: str, results: Sequence[int]) -> None:
        """Add results `[won, drawn, lost]` of the first player; games of a player with itself are ignored."""
        if first == second or not any(results):
            return
        if second in self.counts and first in self.counts[second]:
            first, second, results = second, first, list(reversed(results))
        known = self.counts.setdefault(first, {}).setdefault(second, [0, 0, 0])
        known[:] = [old + new for old, new in zip(known, results, strict=True)]

    def rename_players(self, names: Mapping[str, str]) -> None:
        """Rename players, with all their games."""
        played, self.counts = self.counts, {}
        for first, others in played.items():
            for second, results in others.items():
                self.add_results(names.get(first, first), names.get(second, second), results)

    def win_matrix(self, players: Sequence[str]) -> Tensor:
        """Wins of each player (row) against each other (column), a draw counts 0.5: float64 `[N, N]`."""
        place = {name: number for number, name in enumerate(players)}
        wins = torch.zeros(len(players), len(players), dtype=torch.float64)
        for first, others in self.counts.items():
            for second, (won, drawn, lost) in others.items():
                wins[place[first], place[second]] += won + 0.5 * drawn
                wins[place[second], place[first]] += lost + 0.5 * drawn
        return wins

    def ratings(self, anchors: Sequence[str], policies: Sequence[str]) -> dict[str, float]:
        """Elo ratings of the first anchor (fixed at 0), the snapshots (oldest first) and the `policies`, in this order.

        Ratings maximise the Bradley-Terry likelihood.
        """
        names = {name for first, others in self.counts.items() for name in (first, *others)} - {*policies}
        earlier = sorted(names | {*anchors}, key=lambda name: (int(name.rpartition("@")[2]), name))
        players = [anchors[0], *(name for name in earlier if name != anchors[0]), *policies]
        return dict(zip(players, (ELO_SCALE * bradley_terry(self.win_matrix(players))).tolist(), strict=True))

    def rating_rows(self, ratings: Mapping[str, float]) -> list[dict[str, Any]]:
        """One row per rated player: its rating and its numbers of games."""
        rows = []
        for name, rating in ratings.items():
            own = [results for others in [self.counts.get(name, {})] for results in others.values()]
            own += [results[::-1] for others in self.counts.values() if (results := others.get(name)) is not None]
            won, drawn, lost = (sum(column) for column in zip(*own, strict=True)) if own else (0, 0, 0)
            found = None if math.isnan(rating) else round(rating, 1)
            rows.append({"player": name, "elo": found, "won": won, "drawn": drawn, "lost": lost})
        return rows


def count_results(episodes: Sequence[Episode], first: str, second: str) -> list[int]:
    """Games won, drawn and lost by the first of two agents: the higher sum of rewards wins. Summed over all ranks."""
    counts = torch.zeros(3, dtype=torch.long)
    for episode in episodes:
        if episode.failure is None:
            earned = [sum(paid.get(name, 0.0) for paid in episode.rewards) for name in (first, second)]
            counts[0 if earned[0] > earned[1] else 2 if earned[0] < earned[1] else 1] += 1
    return [int(count) for count in distributed.all_sum(counts).tolist()]
