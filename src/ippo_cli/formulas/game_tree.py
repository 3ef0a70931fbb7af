"""Finite games in extensive form: expected payoffs, best responses and NashConv.

A player that acts at several nodes with equal `information` cannot tell them apart. Simultaneous actions are nodes one
after another, of which the later ones do not have the earlier actions in their information.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leaf:
    """The end of a game."""

    payoffs: tuple[float, ...]  # of each player


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A state in which a player, or chance, selects one of the children."""

    player: int | None  # None: chance
    information: Hashable = None  # all that the player observed and did so far; equal in states it cannot tell apart
    probabilities: Sequence[float]  # of the children, under the evaluated strategies
    children: Sequence[Node | Leaf]


Tree = Node | Leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class BestResponse:
    """A best response of one player to the evaluated strategies of all others."""

    value: float  # expected payoff of the player
    choices: Mapping[Hashable, int]  # child by information, where the others may lead


def expected_payoffs(tree: Tree) -> tuple[float, ...]:
    """The expected payoff of each player if all follow the evaluated strategies."""
    if isinstance(tree, Leaf):
        return tree.payoffs
    parts = [
        [probability * payoff for payoff in expected_payoffs(child)]
        for probability, child in zip(tree.probabilities, tree.children, strict=True)
        if probability > 0
    ]
    return tuple(sum(column) for column in zip(*parts, strict=True))


def best_response(tree: Tree, player: int) -> BestResponse:
    """The best response of a player with perfect recall, by dynamic programming over its information sets.

    An information set I is the states s with equal information; the others and chance reach s with probability r(s).
    The player selects in all of them the child a that maximises sum over s in I of r(s) * v(child a of s).

    A player that wins 1 by naming a coin that it does not see, of which heads has probability .7: value .7.

    Raises `ValueError` if an information set is reached twice in one game.

    Source: Lanctot et al. 2017, "A unified game-theoretic approach to multiagent reinforcement learning", for NashConv;
    the order of information sets is that of their first use.
    """
    return _BestResponseSearch(tree, player).solve()


def nash_conv(tree: Tree, players: int) -> float:
    """The sum over all players of what each gains by a best response to the others: 0 in a Nash equilibrium.

    NashConv(pi) = sum over i of max over pi_i' of u_i(pi_i', pi_-i) - u_i(pi)

    Rock, paper, scissors where a win of paper counts 3, both uniform: each gains 2/3, NashConv is 4/3.
    """
    values = expected_payoffs(tree)
    return sum(best_response(tree, player).value - values[player] for player in range(players))


class _BestResponseSearch:
    def __init__(self, tree: Tree, player: int) -> None:
        self._tree, self._player = tree, player
        self._states: dict[Hashable, list[tuple[Node, float]]] = {}  # with the probability that the others reach them
        self._choices: dict[Hashable, int] = {}
        self._values: dict[int, float] = {}  # by identity of the node
        self._collect(tree, 1.0, frozenset())

    def solve(self) -> BestResponse:
        return BestResponse(value=self._value(self._tree), choices=self._choices)

    def _collect(self, tree: Tree, reach: float, known: frozenset[Hashable]) -> None:
        if isinstance(tree, Leaf) or reach == 0:
            return
        is_own = tree.player == self._player
        if is_own:
            if tree.information in known:
                raise ValueError(f"player {self._player} acts twice with the information {tree.information!r}")
            known |= {tree.information}
            self._states.setdefault(tree.information, []).append((tree, reach))
        for probability, child in zip(tree.probabilities, tree.children, strict=True):
            self._collect(child, reach if is_own else reach * probability, known)

    def _value(self, tree: Tree) -> float:
        if isinstance(tree, Leaf):
            return tree.payoffs[self._player]
        if id(tree) not in self._values:
            if tree.player == self._player:
                value = self._value(tree.children[self._choose(tree.information)])
            else:
                value = sum(
                    probability * self._value(child)
                    for probability, child in zip(tree.probabilities, tree.children, strict=True)
                    if probability > 0
                )
            self._values[id(tree)] = value
        return self._values[id(tree)]

    def _choose(self, information: Hashable) -> int:
        if information not in self._choices:
            states = self._states[information]
            totals = [
                sum(reach * self._value(state.children[place]) for state, reach in states)
                for place in range(len(states[0][0].children))
            ]
            self._choices[information] = totals.index(max(totals))
        return self._choices[information]
