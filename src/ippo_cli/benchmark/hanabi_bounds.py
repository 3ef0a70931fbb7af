"""Scores of random, single, optimal and fully informed play of small Hanabi, and the optimal team as a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from ippo_cli.benchmark.hanabi import AGENTS, HanabiRules, Hands, Move, Table
from ippo_cli.benchmark.public_beliefs import (
    Belief,
    Branch,
    TeamSolver,
    follow_move,
    full_information_score,
    random_score,
    sort_belief,
)


@dataclass(frozen=True, slots=True)
class HanabiScores:
    """Expected scores as fractions of the best score."""

    random: float  # both agents choose legal moves uniformly at random
    single: float  # one agent plays its best response to a random partner: the better seat
    best: float  # the optimal team
    full_information: float  # agents that observe all hands: an upper bound


@cache
def hanabi_scores(rules: HanabiRules) -> HanabiScores:
    """Compute all scores exactly; seconds for the default size, and soon hours for larger ones."""
    solver, game = solve_hanabi(rules), HanabiGame(rules)
    scores = (
        random_score(game),
        max(single_score(game, seat) for seat in range(len(AGENTS))),
        solver.score(),
        full_information_score(game),
    )
    return HanabiScores(*(score / rules.best_score for score in scores))


@cache
def solve_hanabi(rules: HanabiRules) -> TeamSolver:
    """Return a solver, which keeps the prescriptions of all beliefs that it has visited."""
    return TeamSolver(HanabiGame(rules))


class HanabiGame:
    """The rules as a game of public moves; the private states are the hands, weighted by orders of the deck."""

    def __init__(self, rules: HanabiRules) -> None:
        self.rules = rules
        self.known: dict[tuple[Table, Hands, Move], list[Branch]] = {}  # outcomes are requested often

    def begin(self) -> tuple[Table, Mapping[Hands, int]]:
        states: dict[Hands, int] = {}
        for seed in range(self.rules.deals):
            table, hands, _ = self.rules.begin(self.rules.order_deck(seed))
            states[hands] = states.get(hands, 0) + 1
        return table, states

    def observe(self, public: Table, private: Hands) -> tuple[int, ...]:
        return private[1 - public.actor]

    def moves(self, public: Table, private: Hands) -> Sequence[Move]:
        return self.rules.legal_moves(public, private)

    def branches(self, public: Table, private: Hands, move: Move) -> Sequence[Branch]:
        key = public, private, move
        if key not in self.known:
            self.known[key] = [Branch(*outcome) for outcome in self.rules.outcomes(public, private, move)]
        return self.known[key]


class OptimalTeam:
    """Both agents of an optimal team; `choose` uses what the agent that acts observes, and `follow` what both do."""

    def __init__(self, rules: HanabiRules) -> None:
        self.solver = solve_hanabi(rules)
        self.begin()

    def begin(self) -> None:
        """Start a game."""
        self.table, states = self.solver.game.begin()
        self.belief: Belief = sort_belief(states)

    def choose(self, partner_hand: tuple[int, ...]) -> Move:
        """Return the move of the agent that acts."""
        return self.solver.solve(self.table, self.belief)[1][partner_hand]

    def follow(self, move: Move, table: Table) -> None:
        """Update the public belief after a move that did not end the game."""
        game, moves = self.solver.game, self.solver.solve(self.table, self.belief)[1]
        rows = tuple(row for row in self.belief if moves[game.observe(self.table, row[0])] == move)
        self.belief = sort_belief(follow_move(game, self.table, rows, move)[table][0])
        self.table = table


def single_score(game: HanabiGame, seat: int) -> float:
    """Return the expected score of one agent's best response to a partner with uniformly random legal moves."""
    public, states = game.begin()
    learner = _BestResponse(game, seat)
    return learner.value(public, states) / sum(states.values())


class _BestResponse:
    """Values of beliefs of one agent about its own hand, with a random partner."""

    def __init__(self, game: HanabiGame, seat: int) -> None:
        self.game, self.seat = game, seat
        self.solved: dict[tuple[Table, tuple[tuple[Hands, float], ...]], float] = {}

    def value(self, public: Table, states: Mapping[Hands, float]) -> float:
        """Return the value of a distribution, multiplied by its weight; the agent observes its partner's hand."""
        rows: dict[tuple[int, ...], list[tuple[Hands, float]]] = {}
        for state, weight in states.items():
            rows.setdefault(state[1 - self.seat], []).append((state, weight))
        return sum(self._solve(public, tuple(sorted(own))) for own in rows.values())

    def _solve(self, public: Table, rows: tuple[tuple[Hands, float], ...]) -> float:
        key = public, rows
        if key not in self.solved:
            if public.actor == self.seat:
                moves = self.game.moves(public, rows[0][0])
                self.solved[key] = max(self._move_value(public, rows, move) for move in moves)
            else:
                self.solved[key] = self._partner_value(public, rows)
        return self.solved[key]

    def _partner_value(self, public: Table, rows: tuple[tuple[Hands, float], ...]) -> float:
        """The value of a partner's random move: a move is evidence about the own hand, since hints must touch it."""
        by_move: dict[Move, list[tuple[Hands, float]]] = {}
        for state, weight in rows:
            moves = self.game.moves(public, state)
            for move in moves:
                by_move.setdefault(move, []).append((state, weight / len(moves)))
        return sum(self._move_value(public, tuple(own), move) for move, own in by_move.items())

    def _move_value(self, public: Table, rows: tuple[tuple[Hands, float], ...], move: Move) -> float:
        value = 0.0
        following: dict[Table, dict[Hands, float]] = {}
        for state, weight in rows:
            for branch in self.game.branches(public, state, move):
                share = weight * branch.share / branch.total
                if branch.score is not None:
                    value += share * branch.score
                else:
                    states = following.setdefault(branch.public, {})
                    states[branch.private] = states.get(branch.private, 0.0) + share
        return value + sum(self.value(after, states) for after, states in following.items())
