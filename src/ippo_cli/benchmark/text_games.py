"""Text games of TextArena as environments of `task=benchmark_text`, with scores between known bounds.

Unlike the other environments of the benchmark, playing them needs this program and the package textarena.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from math import prod
from pkgutil import resolve_name
from typing import Any

from ippo_cli.benchmark.turn_games import AGENTS
from ippo_cli.tasks.environment import Action

PACKAGE = "textarena"
REMEDY = f"run pip install 'ippo-cli[{PACKAGE}]'"
MIN_SCORE = -1.0  # of an episode: losses have no fixed limit, and confidence sequences need one
INVALID_PENALTY = 1.0  # in rewards; the score of such a game is that of the trades so far
State = Mapping[str, Any]
"""`state.game_state` of a game of TextArena."""

BASE_VALUES = {"Wheat": 5, "Wood": 10, "Sheep": 15, "Brick": 25, "Ore": 40}  # of SimpleNegotiation
AMOUNTS = (1, 5)  # of listed offers; each player begins with at least five of each resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `TextArenaEnvironment` reads of a configuration."""

    env_id: str
    payoff: str
    environment_args: Mapping[str, Any]
    agents: Sequence[str] = AGENTS
    max_turns: int | None = None


class TextGame:
    """A game of TextArena in which the agents are the players 0 and 1. Raises `ImportError` without textarena.

    Observations, invalid actions and the end are those of `task=textarena`. The score is the joint payoff divided by
    the best joint payoff of this game, at least `MIN_SCORE`; it is logged as `joint`. An agent's reward is its own
    payoff, or with `shared` the mean of both, in units in which the mean reward of both is the score without its limit.
    An agent that ends the game with an invalid action gets `INVALID_PENALTY` less.

    `best`: the best joint payoff, or `module:function` of the initial state. `answers`: a `module:function` from the
    state and the number of the player that acts to valid actions, for warm starts.
    """

    def __init__(
        self,
        env_id: str,
        payoff: str,
        best: float | str,
        answers: str,
        shared: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if find_spec(PACKAGE) is None:
            raise ImportError(f"{env_id} needs the package {PACKAGE}; {REMEDY}")
        from ippo_cli.tasks.environments.textarena import TextArenaEnvironment

        settings = Settings(env_id=env_id, payoff=payoff, environment_args=dict(arguments or {}))
        self.game = TextArenaEnvironment(settings)
        self.shared = shared
        self.list_answers: Callable[[State, int], Sequence[str]] = resolve_name(answers)
        self.find_best: Callable[[State], float] = resolve_name(best) if isinstance(best, str) else lambda _: best

    def reset(self, seed: int) -> tuple[Mapping[str, str], dict[str, float]]:
        observations = self.game.reset({"seed": seed}, 0)
        self.best = self.find_best(self.state)
        self.joint = 0.0
        self.roles = self.game.roles
        return observations, {}

    def step(
        self, actions: Mapping[str, str]
    ) -> tuple[Mapping[str, str], dict[str, float], bool, bool, dict[str, float]]:
        step = self.game.step({name: Action(text) for name, text in actions.items()})
        total = sum(step.rewards.values())
        self.joint += total
        own = {name: total / len(AGENTS) for name in AGENTS} if self.shared else step.rewards
        rewards = {name: len(AGENTS) * self._divide(own[name]) for name in AGENTS}
        for name in AGENTS:
            rewards[name] -= INVALID_PENALTY * step.parts.get(f"invalid_{name}", 0.0)
        parts = {**step.parts, "joint": self.score()}
        return step.observations, rewards, step.terminated, step.truncated, parts

    def score(self) -> float:
        """Return the score so far."""
        return max(self._divide(self.joint), MIN_SCORE)

    def actions(self) -> Mapping[str, Sequence[str]]:
        """Return some valid actions of the agent that acts; the game accepts more."""
        player: int = self.game.base.state.current_player_id
        return {AGENTS[player]: self.list_answers(self.state, player)}

    def close(self) -> None:
        """Nothing to release."""

    @property
    def state(self) -> State:
        """The current state of the game."""
        return self.game.base.state.game_state

    def _divide(self, payoff: float) -> float:
        return payoff / self.best if self.best else 0.0


def text_game(**settings: Any) -> TextGame:
    return TextGame(**settings)


def find_best_trade(state: State) -> float:
    """Return the largest possible sum of both players' gains by trades in SimpleNegotiation.

    Each resource goes to the player with the higher value. Every trade moves something in both directions: if one
    player has the higher values of all resources, it returns one unit of the resource with the smallest difference.
    Each player must have at least one unit of every resource. 0 if all values are equal.
    """
    own, other = (state["player_values"][player] for player in range(len(AGENTS)))
    gains = {name: other[name] - own[name] for name in own}  # of a unit that player 0 gives
    held = state["player_resources"]
    total = sum(abs(gain) * held[int(gain < 0)][name] for name, gain in gains.items())
    is_one_way = min(gains.values()) > 0 or max(gains.values()) < 0
    return float(total - min(map(abs, gains.values()))) if is_one_way else float(total)


def list_trade_answers(state: State, player: int) -> list[str]:
    """Return answers to an offer of the other player, or else all offers of one and five units of two resources."""
    held, offer = state["player_resources"], state["current_offer"]
    if offer is not None and offer["from_player"] != player:
        is_possible = all(held[player][name] >= amount for name, amount in offer["requested_resources"].items())
        return ["[Accept]", "[Deny]"] if is_possible else ["[Deny]"]
    return [
        f"[Offer: {amount} {resource} -> {price} {currency}]"
        for resource, currency in product(BASE_VALUES, repeat=2)
        for amount, price in product(AMOUNTS, repeat=2)
        if resource != currency and held[player][resource] >= amount and held[1 - player][currency] >= price
    ] or ["No offer. [Deny]"]


def compute_equal_values_probability() -> float:
    """Return the probability that both players of SimpleNegotiation have equal values, so that no trade gains."""
    ranges = (
        range(max(value - int(0.2 * value), 5), min(value + int(0.2 * value), 40) + 1) for value in BASE_VALUES.values()
    )
    return prod(1 / len(values) for values in ranges)


def list_ultimatum_answers(state: State, player: int) -> list[str]:
    """Return all offers of the proposer, or the answers to one, in IteratedUltimatumGame."""
    if state["phase"] == "offering":
        return [f"[Offer: ${amount}]" for amount in range(state["pool"] + 1)]
    return ["[Accept]", "[Reject]"]
