"""Elo ratings of policies and their snapshots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from spoken import episode

from ippo_cli.training.methods.elo import GameResults, count_results
from ippo_cli.types import Episode


def game(*rewards: Mapping[str, float], failure: Exception | None = None) -> Episode:
    return episode(rewards=list(rewards), failure=failure)


def test_higher_total_reward_wins_the_game() -> None:
    late = game({"a": -0.3}, {"b": -1.0, "a": 1.0})
    games = [late, late, game({"a": 0.5}, {"b": 0.5}), game({"b": 1.0}), game({"a": 9.0}, failure=ValueError())]
    assert count_results(games, "a", "b") == [2, 1, 1]
    assert count_results(games, "b", "a") == [1, 1, 2]


def test_current_games_become_games_of_next_snapshot() -> None:
    games = GameResults()
    games.add_results("p", "p@0", [3, 1, 0])
    games.add_results("p@0", "p", [1, 0, 0])
    games.add_results("p", "p", [5, 5, 5])
    games.rename_players({"p": "p@8"})
    games.add_results("p", "p@8", [2, 0, 1])
    games.add_results("p", "p@0", [0, 0, 0])
    assert games.counts == {"p@8": {"p@0": [3, 1, 1]}, "p": {"p@8": [2, 0, 1]}}
    found = games.ratings(["p@0"], ["p"])
    # One additional draw for each pair with games.
    assert list(found) == ["p@0", "p@8", "p"]
    assert found["p@0"] == 0.0
    assert found["p@8"] == pytest.approx(400 * math.log10((3 + 0.5 + 0.5) / (1 + 0.5 + 0.5)))
    assert found["p"] - found["p@8"] == pytest.approx(400 * math.log10(2.5 / 1.5))
    assert games.rating_rows(found)[1] == {
        "player": "p@8",
        "elo": round(found["p@8"], 1),
        "won": 4,
        "drawn": 1,
        "lost": 3,
    }


def test_no_rating_without_games() -> None:
    found = GameResults().ratings(["a@0", "b@0"], ["a", "b"])
    assert found["a@0"] == 0.0
    assert all(math.isnan(found[name]) for name in ("b@0", "a", "b"))
    assert [row["elo"] for row in GameResults().rating_rows(found)] == [0.0, None, None, None]


def test_snapshots_are_sorted_by_iteration() -> None:
    games = GameResults()
    for iteration in (8, 80, 16):
        games.add_results(f"p@{iteration}", "p@0", [1, 1, 1])
    names: Sequence[str] = list(games.ratings(["p@0"], ["p"]))
    assert names == ["p@0", "p@8", "p@16", "p@80", "p"]
