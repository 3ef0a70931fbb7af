"""Strategies of other trainers in enumerated games: probabilities of actions by information set, scored exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ippo_cli.benchmark.bounds import act_uniformly, game_tree
from ippo_cli.benchmark.tasks import BENCHMARK_TASKS
from ippo_cli.benchmark.turn_games import AGENTS
from ippo_cli.formulas.game_tree import nash_conv

TOLERANCE = 1e-6
InformationSets = Mapping[str, Mapping[str, Sequence[str]]]
"""Agent -> observation -> legal actions."""


def list_information_sets(name: str) -> InformationSets:
    """Return the situations that the agents of a game can tell apart, with their legal actions."""
    found: dict[str, dict[str, Sequence[str]]] = {agent: {} for agent in AGENTS}

    def note(agent: str, observation: str, legal: Sequence[str]) -> Sequence[float]:
        found[agent][observation] = legal
        return act_uniformly(agent, observation, legal)

    game_tree(_make_game(name), note)
    return {agent: dict(sorted(sets.items())) for agent, sets in found.items()}


def score_strategy(name: str, strategy: Mapping[str, Mapping[str, Mapping[str, float]]]) -> float:
    """Return the negative NashConv of a complete strategy: at most 0, which is an equilibrium."""
    tree = game_tree(_make_game(name), lambda agent, seen, legal: [strategy[agent][seen][one] for one in legal])
    return min(-nash_conv(tree, len(AGENTS)), 0.0)


def find_strategy_mistakes(name: str, strategy: Any) -> Iterator[str]:
    """Yield `what; what would work` for every part that is missing, unknown or no distribution."""
    sets = list_information_sets(name)
    if not isinstance(strategy, Mapping):
        yield 'strategy is not an object; write {"first": {"J": {"p": 0.5, "b": 0.5}, ...}, ...}'
        return
    for agent in strategy.keys() - sets.keys():
        yield f"strategy.{agent} is no agent; use {' '.join(sets)}"
    for agent, own in sets.items():
        probabilities = strategy.get(agent)
        if not isinstance(probabilities, Mapping):
            yield f"strategy.{agent} is missing; it needs {' '.join(own)}"
            continue
        for information in sorted(probabilities.keys() - own.keys()):
            yield f"strategy.{agent}.{information} is no information set of {agent}; use {' '.join(own)}"
        for information, legal in own.items():
            yield from _find_wrong_probabilities(
                f"strategy.{agent}.{information}", probabilities.get(information), legal
            )


def _find_wrong_probabilities(place: str, probabilities: Any, legal: Sequence[str]) -> Iterator[str]:
    if not isinstance(probabilities, Mapping):
        yield f"{place} is missing; give the probability of {' and '.join(legal)}"
    elif probabilities.keys() != set(legal):
        names = " ".join(map(str, probabilities)) or "none"
        yield f"{place} has the actions {names}; give those of {' and '.join(legal)}"
    elif not all(isinstance(value, int | float) and not isinstance(value, bool) for value in probabilities.values()):
        yield f"{place} has a probability that is no number; write numbers"
    elif (
        not all(0 <= value <= 1 for value in probabilities.values())
        or abs(math.fsum(probabilities.values()) - 1) > TOLERANCE
    ):
        yield f"{place} is no distribution ({dict(probabilities)}); its probabilities are in [0, 1] and sum to 1"


def _make_game(name: str) -> Any:
    game = BENCHMARK_TASKS[name].game
    assert game is not None
    return game()
