"""`task=textarena`: text games of TextArena; each agent of the task is one of the game's players."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from threading import RLock
from typing import Any, Protocol

import nltk
import numpy as np
import textarena
from textarena.core import GAME_ID, ObservationType
from textarena.envs.registration import ENV_REGISTRY

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import TextArenaConfig
from ippo_cli.tasks.environment import Action, Step
from ippo_cli.tasks.environments.ids import check_registered
from ippo_cli.types import Example

PLAYER = "{player}"  # of task.payoff: the number of a player
_calls = RLock()  # games use the global random generators, so that only one game runs at a time


class GameSettings(Protocol):
    """What an environment reads of a configuration."""

    @property
    def env_id(self) -> str | None: ...
    @property
    def environment_args(self) -> Mapping[str, Any]: ...
    @property
    def agents(self) -> Iterable[str]: ...
    @property
    def payoff(self) -> str | None: ...
    @property
    def max_turns(self) -> int | None: ...


class GameRandom:
    """One game's own states of the global generators of Python and NumPy, which TextArena's games use."""

    def __init__(self, seed: int) -> None:
        self.states = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def install(self) -> Iterator[None]:
        """Use the game's states in a block, and restore the program's states at its end."""
        with _calls:
            before = random.getstate(), np.random.get_state()
            random.setstate(self.states[0])
            np.random.set_state(self.states[1])
            try:
                yield
            finally:
                self.states = random.getstate(), np.random.get_state()
                random.setstate(before[0])
                np.random.set_state(before[1])


class TextArenaEnvironment:
    """A game in which the agents are the players 0, 1, ... in the order of `task.agents`; one acts at a time.

    An agent observes the messages since its last turn, without its own actions, one line `[name] text` per message; its
    first observation begins with the game's instructions. TextArena decides about invalid moves: most games explain
    the first one and ask the same player again, and end with the second. The example's seed determines the game.
    """

    def __init__(self, config: GameSettings) -> None:
        self.config = config
        self.agents = [*config.agents]

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        """Begin a new game: TextArena's wrappers keep the messages of earlier ones."""
        self.random = GameRandom(example["seed"])
        self.turns: Counter[str] = Counter()
        with self.random.install(), _without_downloads():
            self.game = _make_game(self.config)
            self.game.reset(num_players=len(self.agents), seed=example["seed"])
            self.base = _unwrap(self.game)
            self.points = self._read_points()
            self.roles = {name: str(self.base.state.game_info[place]["role"]) for place, name in enumerate(self.agents)}
            return self._observe()

    def step(self, actions: Mapping[str, Action]) -> Step:
        ((agent, action),) = actions.items()
        self.turns[agent] += 1
        with self.random.install():
            is_over, _ = self.game.step(action.text)
            outcomes = self._close() if is_over else {}
            limited = not is_over and self.turns[agent] == self.config.max_turns
            observations = self._observe_all() if is_over or limited else self._observe()
        return Step(
            observations=observations,
            rewards=self._pay(outcomes),
            terminated=is_over,
            truncated=limited,
            parts=self._log_numbers(outcomes) if is_over else {},
        )

    def close(self) -> None:
        """Nothing to release."""

    def _observe(self) -> Mapping[str, str]:
        player, messages = self.base.get_observation()
        return {self.agents[player]: self._format_messages(player, messages)}

    def _observe_all(self) -> Mapping[str, str]:
        """The unread messages of all players, at the end."""
        unread = self.base.state.observations
        return {name: self._format_messages(place, unread[place]) for place, name in enumerate(self.agents)}

    def _format_messages(self, player: int, messages: Any) -> str:
        """Return messages as text; the agent's context has its own actions."""
        if isinstance(messages, str):
            return messages
        names = {GAME_ID: "GAME"} | dict(self.base.state.role_mapping or {})
        return "\n".join(
            f"[{names.get(sender, f'Player {sender}')}] {text}"
            for sender, text, *kind in messages
            if not (sender == player and kind == [ObservationType.PLAYER_ACTION])
        )

    def _close(self) -> Mapping[int, float]:
        """End the game and return TextArena's rewards."""
        rewards, _ = self.game.close()
        return {player: float(reward) for player, reward in (rewards or {}).items()}

    def _pay(self, outcomes: Mapping[int, float]) -> Mapping[str, float]:
        """The rewards of a step: what each player's points grew by, or TextArena's rewards at the end."""
        if self.config.payoff is None:
            return {name: outcomes.get(place, 0.0) for place, name in enumerate(self.agents)}
        before, self.points = self.points, self._read_points()
        return {name: now - then for name, now, then in zip(self.agents, self.points, before, strict=True)}

    def _read_points(self) -> list[float]:
        if self.config.payoff is None:
            return []
        state, path = self.base.state.game_state, self.config.payoff
        return [_read_number(state, path.replace(PLAYER, str(place))) for place in range(len(self.agents))]

    def _log_numbers(self, outcomes: Mapping[int, float]) -> dict[str, float]:
        numbers = {}
        for place, name in enumerate(self.agents):
            ending = f"_{name}" if len(self.agents) > 1 else ""
            numbers[f"outcome{ending}"] = outcomes.get(place, 0.0)
            numbers[f"invalid{ending}"] = float(self.base.state.game_info[place]["invalid_move"])
        return numbers


def make_textarena_factory(config: TextArenaConfig) -> Callable[[], TextArenaEnvironment]:
    """Return a factory of environments; `ConfigError` if the game does not start with these agents."""
    assert config.env_id is not None
    if ":" not in config.env_id:
        check_registered(
            f"task.env_id={config.env_id}",
            config.env_id,
            ENV_REGISTRY,
            kind="game of TextArena",
            listing="import textarena; textarena.pprint_registry_detailed()",
        )
    try:
        TextArenaEnvironment(config).reset({"seed": 0}, 0)
    except Exception as error:  # raised by the game's code
        payoff = "" if config.payoff is None else f" task.payoff={config.payoff}"
        raise ConfigError(
            f"task.env_id={config.env_id} task.environment_args={config.environment_args}{payoff}",
            f"does not start with {len(config.agents)} of task.agents ({_describe_error(error)})",
            "name one agent for each player, and correct the arguments; some games of TextArena do not work",
        ) from error
    return lambda: TextArenaEnvironment(config)


def _describe_error(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"its code needs a newer Python than {sys.version_info.major}.{sys.version_info.minor}"
    if type(error) is LookupError:  # of nltk
        return "it needs a word list of nltk, which is not on this machine"
    return f"{type(error).__name__}: {error!s:.300}"


def _make_game(config: GameSettings) -> Any:
    assert config.env_id is not None
    if ":" not in config.env_id:
        return textarena.make(config.env_id, **config.environment_args)
    module, name = config.env_id.split(":", 1)
    return getattr(import_module(module), name)(**config.environment_args)


def _unwrap(game: Any) -> Any:
    while isinstance(game, textarena.Wrapper):
        game = game.env
    return game


def _read_number(state: Mapping[Any, Any], path: str) -> float:
    """Return the number at a path of the game's state, or the sum of the numbers in it: `inventory_value.0.change`."""
    value: Any = state
    for part in path.split("."):
        key = int(part) if part.isdigit() and not (isinstance(value, Mapping) and part in value) else part
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            known = " ".join(map(str, value)) if isinstance(value, Mapping) else "no keys"
            raise ValueError(f"{path} has no {part!r}, but: {known}") from None
    return float(sum(value.values()) if isinstance(value, Mapping) else value)


@contextmanager
def _without_downloads() -> Iterator[None]:
    """Keep games from downloading word lists; they find the lists that are on this machine."""
    download, nltk.download = nltk.download, lambda *_, **__: False
    try:
        yield
    finally:
        nltk.download = download
