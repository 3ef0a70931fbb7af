"""Exact expected returns of random and optimal play in the environments of `episodes.py`.

    python scripts/bench/play.py [--max-turns 32]

A time limit is part of the environment: optimal play knows the number of remaining turns. The environment's own limit
applies in addition to `--max-turns`, as in a run.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium

from ippo_cli.benchmark.bounds import action_values, backward_induction

CARDS = Counter([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10])  # drawn from an endless deck; 1 is an ace
CARD_ODDS = {card: count / 13 for card, count in CARDS.items()}
TABULAR: Mapping[str, tuple[str, dict[str, Any]]] = {
    "FrozenLake-v1": ("FrozenLake-v1", {"is_slippery": True}),
    "FrozenLake-v1, not slippery": ("FrozenLake-v1", {"is_slippery": False}),
    "CliffWalking-v1": ("CliffWalking-v1", {}),
    "Taxi-v4": ("Taxi-v4", {}),
}
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


@dataclass(frozen=True)
class Returns:
    """Expected undiscounted returns of an episode."""

    random: float
    optimal: float


def tabular_returns(env: gymnasium.Env, turns: int) -> Returns:
    """Compute returns of an environment with a transition table `P`, by backward induction over remaining turns."""
    model: Any = env.unwrapped
    begins = {state: float(odds) for state, odds in enumerate(model.initial_state_distrib) if odds}
    optimal = backward_induction(model.P, turns, max)
    uniform = backward_induction(model.P, turns, lambda values: sum(values) / len(values))
    return Returns(
        random=sum(odds * uniform[state] for state, odds in begins.items()),
        optimal=sum(odds * optimal[state] for state, odds in begins.items()),
    )


def best_action(actions: Mapping[int, Sequence[tuple[float, int, float, bool]]], values: Mapping[int, float]) -> int:
    """Return the optimal action of a state, given the values of next states."""
    worth = dict(zip(actions, action_values(actions, values), strict=True))
    return max(worth, key=lambda action: worth[action])


def blackjack_returns() -> Returns:
    """Compute returns of Blackjack-v1 as registered: a natural beats all except the dealer's natural (`sab=True`)."""
    deals = [
        (CARD_ODDS[one] * CARD_ODDS[two] * CARD_ODDS[up], sorted((one, two)), up)
        for one in CARDS
        for two in CARDS
        for up in CARDS
    ]
    totals = {"random": 0.0, "optimal": 0.0}
    for odds, hand, up in deals:
        for play in totals:
            totals[play] += odds * _hand_value(*_held(hand), up, hand == [1, 10], play)
    return Returns(**totals)


def hits(total: int, ace: bool, up: int) -> bool:
    """Whether optimal play draws a card."""
    return _hit_value(total, ace, up, "optimal") > _stick_value(total, up, natural=False)


@cache
def _hand_value(total: int, ace: bool, up: int, natural: bool, play: str) -> float:
    both = (_stick_value(total, up, natural), _hit_value(total, ace, up, play))
    return max(both) if play == "optimal" else sum(both) / 2


@cache
def _hit_value(total: int, ace: bool, up: int, play: str) -> float:
    value = 0.0
    for card, odds in CARD_ODDS.items():
        hard = total - 10 * ace + card
        has_ace = ace or card == 1
        usable = has_ace and hard + 10 <= 21
        after = hard + 10 * usable
        value += odds * (-1.0 if after > 21 else _hand_value(after, usable, up, False, play))
    return value


@cache
def _stick_value(total: int, up: int, natural: bool) -> float:
    """Return wins minus losses over the dealer's final scores."""
    value = 0.0
    for hidden, odds in CARD_ODDS.items():
        if natural and sorted((up, hidden)) != [1, 10]:
            value += odds
            continue
        for score, share in _dealer_scores(*_held([up, hidden])).items():
            value += odds * share * ((total > score) - (total < score))
    return value


@cache
def _dealer_scores(total: int, ace: bool) -> Mapping[int, float]:
    """Final score -> probability; 0 for more than 21. The dealer draws below 17."""
    if total > 21:
        return {0: 1.0}
    if total >= 17:
        return {total: 1.0}
    scores: Counter[int] = Counter()
    for card, odds in CARD_ODDS.items():
        hard = total - 10 * ace + card
        usable = (ace or card == 1) and hard + 10 <= 21
        for score, share in _dealer_scores(hard + 10 * usable, usable).items():
            scores[score] += odds * share  # type: ignore[assignment]
    return scores


def _held(hand: Sequence[int]) -> tuple[int, bool]:
    """Return the sum of two cards, and whether an ace counts 11."""
    ace = 1 in hand
    return sum(hand) + 10 * ace, ace


Odds = tuple[float, float, float]  # of winning, drawing and losing


def tictactoe_odds(*, optimal: bool, first: bool) -> Odds:
    """Return the odds of a player against a random player."""
    return _from_here("." * 9, first, optimal)


@cache
def _from_here(board: str, own_turn: bool, optimal: bool) -> Odds:
    if over := _ended(board):
        return over
    mark = "x" if own_turn else "o"
    after = [_from_here(board[:place] + mark + board[place + 1 :], not own_turn, optimal) for place in free(board)]
    if own_turn and optimal:
        return max(after, key=lambda odds: odds[0] - odds[2])
    win, draw, loss = (sum(odds[result] for odds in after) / len(after) for result in range(3))
    return win, draw, loss


def best_square(board: str) -> int:
    """Return the square for `x` with the largest wins minus losses against a random player."""
    after = {place: _from_here(board[:place] + "x" + board[place + 1 :], False, True) for place in free(board)}
    return max(after, key=lambda place: after[place][0] - after[place][2])


def free(board: str) -> list[int]:
    return [place for place, mark in enumerate(board) if mark == "."]


def _ended(board: str) -> Odds | None:
    won = {board[a] for a, b, c in LINES if board[a] == board[b] == board[c] != "."}
    if won:
        return (1.0, 0.0, 0.0) if "x" in won else (0.0, 0.0, 1.0)
    return None if "." in board else (0.0, 1.0, 0.0)


def table(max_turns: int | None) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| environment | turns | random play | optimal play |"
    yield "|---|---|---|---|"
    for name, (env_id, arguments) in TABULAR.items():
        env = gymnasium.make(env_id, **arguments)
        limits = [limit for limit in (max_turns, env.spec and env.spec.max_episode_steps) if limit]
        turns = min(limits) if limits else 1000
        returns = tabular_returns(env, turns)
        yield f"| {name} | {turns} | {returns.random:.4f} | {returns.optimal:.4f} |"
    returns = blackjack_returns()
    yield f"| Blackjack-v1 | | {returns.random:.4f} | {returns.optimal:.4f} |"
    for first, seat in ((True, "first seat"), (False, "second seat")):
        cells = []
        for optimal in (False, True):
            win, draw, loss = tictactoe_odds(optimal=optimal, first=first)
            cells.append(f"{win - loss:.4f} (won {win:.4f}, drawn {draw:.4f}, lost {loss:.4f})")
        yield f"| classic/tictactoe_v3 against random play, {seat} | | {cells[0]} | {cells[1]} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--max-turns", type=int, default=32, help="task.max_turns; 0: only the limit of the environment"
    )
    for line in table(parser.parse_args().max_turns or None):
        print(line)


if __name__ == "__main__":
    main()
