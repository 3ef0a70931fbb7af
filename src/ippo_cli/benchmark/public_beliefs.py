"""Exact optimal play of two agents with one reward and public moves, by dynamic programming over public beliefs.

Agents that observe all moves can agree before the game what each private observation will do: a prescription,
which maps what the agent that acts may observe to its move. The value of a public belief, a distribution over private
states given all moves, is that of the best prescription (Nayyar, Mahajan and Teneketzis,
https://arxiv.org/abs/1209.1695). The best prescription is searched by branch and bound: the value of a belief is
convex, so the value of a move for two observations is at most the sum of its values for each of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

TOLERANCE = 1e-9  # of comparisons with upper bounds, which are floats
Belief = tuple[tuple[Any, int], ...]  # sorted private states with weights
Prescription = Mapping[Hashable, Any]  # observation of the agent that acts -> its move


class Branch(NamedTuple):
    """One outcome of a move, with the probability `share / total`; `score` is None before the end."""

    public: Any
    private: Any
    share: int
    total: int
    score: float | None


class TeamGame(Protocol):
    """A game of two agents that take turns. Weights of private states are divisible by each `total` of branches."""

    def begin(self) -> tuple[Any, Mapping[Any, int]]:
        """Return the public state, and the private states with integer weights."""
        ...

    def observe(self, public: Any, private: Any) -> Hashable:
        """Return what the agent that acts observes of a private state."""
        ...

    def moves(self, public: Any, private: Any) -> Sequence[Any]:
        """Return the legal moves; equal observations have equal moves. A move is public."""
        ...

    def branches(self, public: Any, private: Any, move: Any) -> Iterable[Branch]:
        """Return the outcomes of a move."""
        ...


def random_score(game: TeamGame) -> float:
    """Return the expected score of uniformly random legal moves."""
    return _mean_over_states(game, lambda values: sum(values) / len(values))


def full_information_score(game: TeamGame) -> float:
    """Return the expected score of agents that observe all private states, but not the future."""
    return _mean_over_states(game, max)


class TeamSolver:
    """The optimal score of a game, and prescriptions that reach it; memory grows with the beliefs that are visited."""

    def __init__(self, game: TeamGame) -> None:
        self.game = game
        self.solved: dict[tuple[Any, Belief], tuple[float, Prescription]] = {}
        self.open_scores = _StateScores(game, max)

    def score(self) -> float:
        """Return the expected score of the optimal team."""
        public, states = self.game.begin()
        return self.solve(public, sort_belief(states))[0] / sum(states.values())

    def solve(self, public: Any, belief: Belief) -> tuple[float, Prescription]:
        """Return the value of a belief, multiplied by its weight, and the best prescription."""
        key = public, belief
        if key not in self.solved:
            self.solved[key] = _PrescriptionSearch(self, public, belief).run()
        return self.solved[key]

    def move_value(self, public: Any, belief: Belief, move: Any) -> float:
        """Return the value of one move in all states of a belief, multiplied by its weight."""
        value, following = 0.0, follow_move(self.game, public, belief, move)
        for after, (states, score) in following.items():
            value += score
            if states:
                value += self.solve(after, sort_belief(states))[0]
        return value

    def move_limit(self, public: Any, belief: Belief, move: Any) -> float:
        """Return an upper bound of `move_value`: both agents observe everything after the move."""
        return sum(
            weight * self.open_scores.branch_value(branch)
            for state, weight in belief
            for branch in self.game.branches(public, state, move)
        )


def follow_move(game: TeamGame, public: Any, belief: Belief, move: Any) -> dict[Any, tuple[dict[Any, int], float]]:
    """Return, by public state after a move: private states with weights, and the weighted scores of games that end."""
    following: dict[Any, tuple[dict[Any, int], float]] = {}
    for state, weight in belief:
        for branch in game.branches(public, state, move):
            states, score = following.get(branch.public, ({}, 0.0))
            share = weight * branch.share // branch.total
            if branch.score is None:
                states[branch.private] = states.get(branch.private, 0) + share
            else:
                score += share * branch.score
            following[branch.public] = states, score
    return following


class _PrescriptionSearch:
    """Branch and bound over the prescriptions of one belief."""

    def __init__(self, solver: TeamSolver, public: Any, belief: Belief) -> None:
        self.solver, self.public = solver, public
        rows: dict[Hashable, list[tuple[Any, int]]] = {}
        for state, weight in belief:
            rows.setdefault(solver.game.observe(public, state), []).append((state, weight))
        self.observations = sorted(rows, key=lambda seen: -sum(weight for _, weight in rows[seen]))
        self.rows = [rows[seen] for seen in self.observations]
        self.values: dict[tuple[Any, tuple[int, ...]], float] = {}  # of a move for a set of observations
        self.best, self.best_moves = -float("inf"), ()

    def run(self) -> tuple[float, Prescription]:
        self.options = [self._rank_moves(place) for place in range(len(self.rows))]
        limits = [options[0][0] for options in self.options]
        self.limits_after = [sum(limits[place:]) for place in range(len(limits) + 1)]
        self._extend((), {}, 0.0)
        return self.best, dict(zip(self.observations, self.best_moves, strict=True))

    def _rank_moves(self, place: int) -> list[tuple[float, Any]]:
        """Return the moves of one observation with upper bounds, best first."""
        belief = tuple(self.rows[place])
        moves = self.solver.game.moves(self.public, belief[0][0])
        limits = [(self.solver.move_limit(self.public, belief, move), move) for move in moves]
        limits.sort(key=lambda option: -option[0])
        if len(self.rows) == 1 or len(moves) == 1:
            return limits
        # The value of a move if the partner knows the observation is a tighter bound than full information.
        tight, highest = [], -float("inf")
        for limit, move in limits:
            if limit > highest + TOLERANCE:
                limit = min(limit, self._value(move, (place,)))
                highest = max(highest, limit)
            tight.append((limit, move))
        return sorted(tight, key=lambda option: -option[0])

    def _value(self, move: Any, places: tuple[int, ...]) -> float:
        key = move, places
        if key not in self.values:
            belief = sort_belief(dict(row for place in places for row in self.rows[place]))
            self.values[key] = self.solver.move_value(self.public, belief, move)
        return self.values[key]

    def _extend(self, moves: tuple[Any, ...], places: dict[Any, tuple[int, ...]], total: float) -> None:
        """Choose moves of the remaining observations; `total` is the value of the moves chosen so far."""
        place = len(moves)
        if place == len(self.rows):
            if total > self.best + TOLERANCE:
                self.best, self.best_moves = total, moves
            return
        for limit, move in self.options[place]:
            if total + limit + self.limits_after[place + 1] <= self.best + TOLERANCE:
                break
            chosen = places.get(move, ())
            value = self._value(move, (*chosen, place)) - (self._value(move, chosen) if chosen else 0.0)
            if total + value + self.limits_after[place + 1] > self.best + TOLERANCE:
                self._extend((*moves, move), {**places, move: (*chosen, place)}, total + value)


class _StateScores:
    """Values of single private states, if the agents observe them; `combine` maps the values of moves to a value."""

    def __init__(self, game: TeamGame, combine: Any) -> None:
        self.game, self.combine = game, combine
        self.values: dict[Any, float] = {}

    def value(self, public: Any, private: Any) -> float:
        key = public, private
        if key not in self.values:
            self.values[key] = self.combine(
                [
                    sum(map(self.branch_value, self.game.branches(public, private, move)))
                    for move in self.game.moves(public, private)
                ]
            )
        return self.values[key]

    def branch_value(self, branch: Branch) -> float:
        """Return a branch's value, multiplied by its probability."""
        value = self.value(branch.public, branch.private) if branch.score is None else branch.score
        return value * branch.share / branch.total


def _mean_over_states(game: TeamGame, combine: Any) -> float:
    public, states = game.begin()
    scores = _StateScores(game, combine)
    return sum(weight * scores.value(public, state) for state, weight in states.items()) / sum(states.values())


def sort_belief(states: Mapping[Any, int]) -> Belief:
    """Return states with weights in one order."""
    return tuple(sorted(states.items()))
