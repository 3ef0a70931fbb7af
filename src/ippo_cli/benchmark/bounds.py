"""Scores of random, single and optimal play in the tasks of the benchmark, by exact enumeration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any

from ippo_cli.benchmark.environments import CELLS, DUEL, MOVES, Payoffs, meeting, move_cells
from ippo_cli.benchmark.turn_games import AGENTS, Caller, Kuhn
from ippo_cli.formulas.game_tree import Leaf, Node, Tree, best_response, expected_payoffs, nash_conv

EXACT, MEASURED, LIMIT, UNKNOWN = "exact", "measured", "limit", "unknown"
NO_DEAL = "no deal"  # source of the score of agents that agree on nothing, in place of random play


@dataclass(frozen=True, slots=True)
class Bounds:
    """Expected scores of a task; None where one is not known."""

    random: float | None  # all agents act uniformly at random
    best: float | None  # optimal play
    single: float | None = None  # one agent learns, the others act uniformly at random: the best of all agents
    sources: Mapping[str, str] = field(default_factory=dict)  # of scores that are not exact: measured, limit, no deal

    def source(self, name: str) -> str:
        """Return where a score comes from: exact, measured, limit (no score is better), no deal, or unknown."""
        return UNKNOWN if getattr(self, name) is None else self.sources.get(name, EXACT)

    def normalise(self, score: float) -> float | None:
        """Return a score on a scale where random play is 0 and optimal play is 1; None if one of them is unknown."""
        if self.random is None or self.best is None:
            return None
        return (score - self.random) / (self.best - self.random)


Outcomes = Sequence[tuple[float, int, float, bool]]
"""Of one action in one state: probability, next state, reward, and whether the episode ends."""


def backward_induction(
    transitions: Mapping[int, Mapping[Any, Outcomes]], turns: int, choose: Callable[[Sequence[float]], float]
) -> dict[int, float]:
    """Return each state's value with `turns` turns left; `choose` maps the values of actions to the state's value."""
    values = dict.fromkeys(transitions, 0.0)
    for _ in range(turns):
        values = {state: choose(action_values(actions, values)) for state, actions in transitions.items()}
    return values


def action_values(actions: Mapping[Any, Outcomes], values: Mapping[int, float]) -> list[float]:
    """Return the value of each action of a state, given the values of next states."""
    return [
        sum(odds * (reward + (0.0 if ended else values[int(state)])) for odds, state, reward, ended in outcomes)
        for outcomes in actions.values()
    ]


@cache
def meet_bounds(turns: int, *, at_end: bool) -> Bounds:
    """Compute bounds for both agents by backward induction over cells and remaining turns."""
    cells = list(product(range(CELLS), repeat=2))

    def value(choose: Callable[[Sequence[float]], float], *, alone: bool) -> float:
        """Return the mean value of all cells; with `alone` the second agent moves at random."""
        transitions: dict[int, Mapping[Any, Outcomes]] = {}
        for turn, place in product(range(turns), range(len(cells))):
            moves: Mapping[Any, Sequence[str]] = (
                {own: [own + other for other in MOVES] for own in MOVES}
                if alone
                else {pair: [pair] for pair in map("".join, product(MOVES, repeat=2))}
            )
            transitions[turn * len(cells) + place] = {
                action: [
                    (1 / len(pairs), *_meet_outcome(move_cells(cells[place], *pair), turn, turns, at_end))
                    for pair in pairs
                ]
                for action, pairs in moves.items()
            }
        values = backward_induction(transitions, turns, choose)
        return fmean(values[place] for place in range(len(cells)))

    return Bounds(value(fmean, alone=False), value(max, alone=False), value(max, alone=True))


def _meet_outcome(cells: tuple[int, int], turn: int, turns: int, at_end: bool) -> tuple[int, float, bool]:
    """Return the next state, the reward, and whether the episode ends."""
    over = turn == turns - 1
    behind = 0 if over else (turn + 1) * CELLS**2 + cells[0] * CELLS + cells[1]
    return behind, meeting(cells, turn, turns, at_end), over


def matrix_bounds(payoffs: Payoffs) -> Bounds:
    """Compute bounds of the mean over both agents; the best pair of actions gives the upper one."""
    means = {pair: sum(both) / 2 for pair, both in payoffs.items()}
    rows = [
        [mean for pair, mean in means.items() if pair[seat] == option]
        for seat in range(len(AGENTS))
        for option in {pair[seat] for pair in payoffs}
    ]
    return Bounds(sum(means.values()) / len(means), max(means.values()), max(map(fmean, rows)))


def exploitability(mixed: Mapping[str, float], other: Mapping[str, float], payoffs: Payoffs = DUEL) -> float:
    """Return NashConv: the sum of both agents' gains from a best response to the other's mixed strategy."""
    first = max(sum(share * payoffs[own + theirs][0] for theirs, share in other.items()) for own in mixed)
    second = max(sum(share * payoffs[theirs + own][1] for theirs, share in mixed.items()) for own in other)
    return (
        first
        + second
        - sum(
            share * part * sum(payoffs[own + theirs]) for own, share in mixed.items() for theirs, part in other.items()
        )
    )


def duel_bounds() -> Bounds:
    """Compute the negative NashConv of uniform play; that of an equilibrium is 0."""
    uniform = {option: 1 / 3 for option in "rps"}
    return Bounds(-exploitability(uniform, uniform), 0.0)


Probabilities = Callable[[str, str, Sequence[str]], Sequence[float]]
"""An agent's strategy: agent, observation and legal actions -> probabilities."""


def game_tree(environment: Any, strategy: Probabilities) -> Node:
    """Return the tree of an environment in which one agent acts at a time and remembers its last observation."""
    outcomes = environment.chance_outcomes()
    children = [_subtree(environment, seed, [], strategy) for seed in outcomes]
    return Node(player=None, probabilities=[*outcomes.values()], children=children)


def _subtree(environment: Any, seed: int, actions: Sequence[str], strategy: Probabilities) -> Tree:
    observations, rewards = environment.reset(seed)
    for action in actions:
        observations, rewards, *_ = environment.step(dict.fromkeys(observations, action))
    if not observations:
        return Leaf(tuple(rewards[name] for name in AGENTS))
    ((name, observation),) = observations.items()
    legal = environment.actions()[name]
    return Node(
        player=AGENTS.index(name),
        information=observation,
        probabilities=strategy(name, observation, legal),
        children=[_subtree(environment, seed, [*actions, action], strategy) for action in legal],
    )


def act_uniformly(agent: str, observation: str, legal: Sequence[str]) -> Sequence[float]:
    """Return equal probabilities."""
    return [1 / len(legal)] * len(legal)


def kuhn_bounds() -> Bounds:
    """Compute the negative NashConv of uniform play; that of an equilibrium is 0."""
    return Bounds(-nash_conv(game_tree(Kuhn(), act_uniformly), len(AGENTS)), 0.0)


def caller_bounds() -> Bounds:
    """Compute the score of random play, and of asking exactly where the letter is unknown."""
    caller = Caller()
    tree = game_tree(caller, act_uniformly)
    single = max(best_response(tree, player).value for player in range(len(AGENTS)))
    return Bounds(expected_payoffs(tree)[0], 1 - caller.cost / 2, single)
