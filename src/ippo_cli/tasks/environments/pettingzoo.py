"""`task=pettingzoo`: PettingZoo environments with discrete actions, turn-based (AEC) or parallel, as text."""

from __future__ import annotations

import logging
import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pettingzoo
from gymnasium import spaces
from pettingzoo.utils.env_logger import EnvLogger
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper, TerminateIllegalWrapper

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import IllegalMove, ObservationForm, Opponent, PettingzooConfig
from ippo_cli.tasks.environment import Action, Step
from ippo_cli.tasks.environments.ids import check_registered
from ippo_cli.tasks.environments.pettingzoo_games import KNOWN_GAMES, GameText
from ippo_cli.tasks.environments.spaces import MASK, ActionTexts, format_numbers, unwritable_reason
from ippo_cli.types import Example

ALTERNATE = "alternate"
OPPONENTS: dict[Opponent, Callable[[Sequence[int], random.Random], int]] = {
    Opponent.random: lambda legal, rng: rng.choice(legal)
}
MAX_EMPTY_GAMES = 100  # consecutive games that end before an agent of the task acts


class PettingzooEnvironment(ABC):
    """A game with the task's agents on some seats and an opponent on the others.

    The example's seed determines the initial state and, with seat=alternate, the seats; the seed passed to `reset`
    determines the opponent's moves. If a game ends before an agent of the task acts, a new game begins.
    """

    def __init__(
        self, env: Any, config: PettingzooConfig, texts: Mapping[str, ActionTexts], describe: Callable[[str, Any], str]
    ) -> None:
        self.env = env
        self.config = config
        self.action_texts = texts  # by seat
        self.describe = describe
        self.opponent = OPPONENTS[config.opponent]

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        self.seats = _assign_seats(self.config, self.env.possible_agents, example["seed"])
        self.roles = {agent: seat for seat, agent in self.seats.items()}
        self.rng = random.Random(seed)
        for _ in range(MAX_EMPTY_GAMES):
            self._reset_game()
            self.start_game(example["seed"])
            if not self.is_over:
                return self._describe_observations()
        raise RuntimeError(f"task.env_id={self.config.env_id}: games end before an agent of the task has acted")

    def _reset_game(self) -> None:
        agents = self.seats.values()
        self.turns: Counter[str] = Counter()
        self.invalid = 0
        self.pending_moves: dict[str, int] = {}  # by seat: actions that wait for simultaneous ones
        self.total_rewards = dict.fromkeys(agents, 0.0)  # by agent: rewards of the game so far
        self.step_rewards = dict.fromkeys(agents, 0.0)  # by agent: rewards since the last step
        self.ended: dict[str, bool] = {}  # by seat: True if terminated, False if truncated
        self.final_observations: dict[str, str] = {}  # by agent: final observation

    def step(self, actions: Mapping[str, Action]) -> Step:
        place = {agent: seat for seat, agent in self.seats.items()}
        for agent, action in actions.items():
            self.turns[agent] += 1
            seat = place[agent]
            move = self._parse_move(seat, action.text)
            if move is None:
                self.invalid += 1
                self.step_rewards[agent] += self.config.invalid_reward
            else:
                self.pending_moves[seat] = move
        self.apply_moves()
        paid, self.step_rewards = self.step_rewards, dict.fromkeys(self.step_rewards, 0.0)
        limited = not self.is_over and max(self.turns.values()) == self.config.max_turns
        terminated = self.is_over and any(self.ended.values())
        return Step(
            observations=self.final_observations if self.is_over else self._describe_observations(everyone=limited),
            rewards=paid,
            terminated=terminated,
            truncated=limited or (self.is_over and not terminated),
            unfinished=frozenset(self.seats[seat] for seat, done in self.ended.items() if terminated and not done),
            ended=frozenset(self.seats[seat] for seat, done in self.ended.items() if done),
            parts=self._log_numbers(ended=self.is_over or limited),
        )

    def actions(self) -> Mapping[str, Sequence[str]]:
        """Legal actions of the agents that act next."""
        texts = self.action_texts
        return {
            self.seats[seat]: [texts[seat].write(move) for move in self.legal_moves(seat)]
            for seat in self.seats_to_act()
        }

    def close(self) -> None:
        self.env.close()

    @property
    def is_over(self) -> bool:
        """Whether all agents of the task have ended."""
        return len(self.ended) == len(self.seats)

    @abstractmethod
    def start_game(self, seed: int) -> None:
        """Start a game and advance to the first action of an agent of the task."""

    @abstractmethod
    def apply_moves(self) -> None:
        """Apply the chosen moves if all simultaneous ones are chosen, and advance to the next action of an agent."""

    @abstractmethod
    def seats_to_act(self) -> list[str]:
        """The seats of the task's agents that act next."""

    @abstractmethod
    def observe(self, seat: str) -> Any:
        """The raw observation of a seat."""

    @abstractmethod
    def get_info(self, seat: str) -> Mapping[str, Any]:
        """The environment's info dict of a seat."""

    def legal_moves(self, seat: str) -> list[int]:
        """The legal actions of a seat."""
        seen, every = self.observe(seat), self.action_texts[seat].actions
        mask = seen.get(MASK) if isinstance(seen, dict) else None
        if mask is None:
            mask = self.get_info(seat).get(MASK)
        return [*every] if mask is None else [every[place] for place in np.flatnonzero(mask)]

    def add_rewards(self, rewards: Mapping[str, float]) -> None:
        """Add the rewards of the last move."""
        for seat, reward in rewards.items():
            if seat in self.seats:
                self.total_rewards[self.seats[seat]] += float(reward)
                self.step_rewards[self.seats[seat]] += float(reward)

    def record_ends(self, terminations: Mapping[str, bool], truncations: Mapping[str, bool]) -> None:
        """Record which agents have ended, and their final observations."""
        for seat, agent in self.seats.items():
            if seat not in self.ended and (terminations.get(seat) or truncations.get(seat)):
                self.ended[seat] = bool(terminations.get(seat))
                self.final_observations[agent] = self.describe(seat, self.observe(seat))

    def opponent_move(self, seat: str) -> int:
        return self.opponent(self.legal_moves(seat), self.rng)

    def _parse_move(self, seat: str, text: str) -> int | None:
        move = self.action_texts[seat].read(text)
        if move is None or (self.config.illegal_move is IllegalMove.retry and move not in self.legal_moves(seat)):
            return None
        return move

    def _describe_observations(self, *, everyone: bool = False) -> dict[str, str]:
        """Observations of the agents that act next; with `everyone`, of all agents."""
        seats = [seat for seat in self.seats if seat not in self.ended] if everyone else self.seats_to_act()
        seen = {self.seats[seat]: self.describe(seat, self.observe(seat)) for seat in seats}
        return self.final_observations | seen if everyone else seen

    def _log_numbers(self, *, ended: bool) -> dict[str, float]:
        """`win`, `draw` and `loss` by the sign of the total reward; all 0 for a game truncated at `max_turns`."""
        parts = {"invalid": float(self.invalid)}
        for agent, earned in self.total_rewards.items() if ended else ():
            ending = f"_{agent}" if len(self.total_rewards) > 1 else ""
            for name, holds in (("win", earned > 0), ("draw", earned == 0), ("loss", earned < 0)):
                parts[name + ending] = float(self.is_over and holds)
        return parts


class AecEnvironment(PettingzooEnvironment):
    """A game in which one seat acts at a time."""

    def start_game(self, seed: int) -> None:
        EnvLogger.flush()  # EnvLogger stores every warning about an illegal move
        self.cached_observations: dict[str, Any] = {}
        self.env.reset(seed=seed)
        self._advance()

    def apply_moves(self) -> None:
        for seat in self.seats_to_act():
            if seat in self.pending_moves:
                self._move(seat, self.pending_moves.pop(seat))
                self._advance()

    def seats_to_act(self) -> list[str]:
        return [] if self.is_over else [self.env.agent_selection]

    def observe(self, seat: str) -> Any:
        if seat not in self.cached_observations:  # used twice per move: for the text and the legal actions
            self.cached_observations[seat] = self.env.observe(seat)
        return self.cached_observations[seat]

    def get_info(self, seat: str) -> Mapping[str, Any]:
        return self.env.infos.get(seat, {})

    def _advance(self) -> None:
        """Play the opponent's moves until an agent of the task acts."""
        while not self.is_over:
            seat = self.env.agent_selection
            if self.env.terminations[seat] or self.env.truncations[seat]:
                self._step(None)
            elif seat in self.seats:
                return
            else:
                self._move(seat, self.opponent_move(seat))

    def _move(self, seat: str, move: int) -> None:
        self._step(move)
        self.add_rewards(self.env.rewards)
        self.record_ends(self.env.terminations, self.env.truncations)

    def _step(self, move: int | None) -> None:
        self.cached_observations = {}
        self.env.step(move)


class ParallelEnvironment(PettingzooEnvironment):
    """A game in which all seats act simultaneously: it steps when every agent of the task has chosen."""

    def start_game(self, seed: int) -> None:
        self.cached_observations, self.infos = self.env.reset(seed=seed)

    def apply_moves(self) -> None:
        if self.seats_to_act():
            return
        moves = {
            seat: self.pending_moves[seat] if seat in self.seats else self.opponent_move(seat)
            for seat in self.env.agents
        }
        self.pending_moves = {}
        self.cached_observations, rewards, terminations, truncations, self.infos = self.env.step(moves)
        self.add_rewards(rewards)
        self.record_ends(terminations, truncations)

    def seats_to_act(self) -> list[str]:
        return [seat for seat in self.env.agents if seat in self.seats and seat not in self.pending_moves]

    def observe(self, seat: str) -> Any:
        return self.cached_observations[seat]

    def get_info(self, seat: str) -> Mapping[str, Any]:
        return self.infos.get(seat, {})


def make_pettingzoo_factory(config: PettingzooConfig) -> Callable[[], PettingzooEnvironment]:
    """Return a factory of environments; `ConfigError` if one cannot be created or written as text."""
    assert config.env_id is not None
    check_registered(
        f"task.env_id={config.env_id}",
        _documented_id(config.env_id),
        {_documented_id(name) for name in (*pettingzoo.aec_registry, *pettingzoo.parallel_registry)},
        kind="game of PettingZoo",
        listing="import pettingzoo; pettingzoo.pprint_registry()",
    )
    if config.illegal_move is IllegalMove.lose:  # suppresses one warning per illegal move
        logging.getLogger(EnvLogger.__module__).setLevel(logging.ERROR)
    first = _make(config)
    known = KNOWN_GAMES.get(first.metadata.get("name", "").rpartition("_v")[0])
    _check_seats(config, first)
    _check_illegal_move_rule(config, first)
    texts = {seat: _action_texts(config, first.action_space(seat), seat, known) for seat in first.possible_agents}
    spaces_seen = {seat: first.observation_space(seat) for seat in first.possible_agents}
    _check_observations(config, spaces_seen, known)
    tell = _make_describer(config.observation, spaces_seen, texts, known)
    kind = ParallelEnvironment if _is_parallel(config) else AecEnvironment
    first.close()
    return lambda: kind(_strip_wrappers(_make(config), config), config, texts, tell)


def _strip_wrappers(env: Any, config: PettingzooConfig) -> Any:
    """Remove the outer PettingZoo wrappers that check rules which this class guarantees.

    They are slower than a small game. With illegal_move=lose, the wrapper that ends the game on illegal moves stays.
    """
    retried = (TerminateIllegalWrapper,) if config.illegal_move is IllegalMove.retry else ()
    while type(env) in (OrderEnforcingWrapper, AssertOutOfBoundsWrapper, *retried):
        env = env.env
    return env


def _is_parallel(config: PettingzooConfig) -> bool:
    """Whether an environment has a parallel API, which is then used."""
    assert config.env_id is not None
    try:
        pettingzoo.spec("parallel", config.env_id)
    except Exception:  # the registry raises its own error classes
        return False
    return True


def _make(config: PettingzooConfig) -> Any:
    assert config.env_id is not None
    try:
        return pettingzoo.make("parallel" if _is_parallel(config) else "aec", config.env_id, **config.environment_args)
    except Exception as error:  # raised by the registry's or the environment's code
        raise ConfigError(
            f"task.env_id={config.env_id} task.environment_args={config.environment_args}",
            f"cannot be created ({type(error).__name__}: {error!s:.300})",
            "see its documentation for arguments and required packages",
        ) from error


def _documented_id(env_id: str) -> str:
    """Convert the registry's `classic/tictactoe-v3` to the documented form `classic/tictactoe_v3`."""
    return re.sub(r"-(v\d+)$", r"_\1", env_id)


def _check_seats(config: PettingzooConfig, env: Any) -> None:
    seats = len(env.possible_agents)
    if len(config.agents) > seats:
        raise ConfigError(
            "task.agents={" + ",".join(config.agents) + "}",
            f"names more agents than the {seats} seats of task.env_id={config.env_id}",
            f"name at most {seats} agents",
        )
    if config.seat != ALTERNATE and not (isinstance(config.seat, int) and 0 <= config.seat < seats):
        raise ConfigError(
            f"task.seat={config.seat}",
            f"is not a seat of task.env_id={config.env_id}",
            "use one of " + " ".join(map(str, [*range(seats), ALTERNATE])),
        )


def _check_illegal_move_rule(config: PettingzooConfig, env: Any) -> None:
    """Raise `ConfigError` for illegal_move=lose with a game that has no rule for illegal moves."""
    layer = env
    while layer is not None and not isinstance(layer, TerminateIllegalWrapper):
        layer = getattr(layer, "aec_env", None) or getattr(layer, "env", None)
    if config.illegal_move is IllegalMove.lose and layer is None:
        raise ConfigError(
            "task.illegal_move=lose",
            f"needs a game with a rule for illegal moves, which {config.env_id} does not have",
            "use task.illegal_move=retry",
        )


def _assign_seats(config: PettingzooConfig, possible: Sequence[str], seed: int) -> dict[str, str]:
    """Return seat -> agent of the task, in the seat order starting at the first agent's seat."""
    first = seed % len(possible) if config.seat == ALTERNATE else int(config.seat)
    return {possible[(first + place) % len(possible)]: agent for place, agent in enumerate(config.agents)}


def _action_texts(config: PettingzooConfig, space: Any, seat: str, known: GameText | None) -> ActionTexts:
    if not isinstance(space, spaces.Discrete):
        raise ConfigError(
            f"task.env_id={config.env_id}",
            f"has actions that are not discrete ({seat}: {space})",
            "use an environment with Discrete action spaces",
        )
    count = int(space.n)
    return ActionTexts(count, start=int(space.start), names=known.actions(count) if known else ())


def _check_observations(config: PettingzooConfig, seen: Mapping[str, Any], known: GameText | None) -> None:
    if config.observation is ObservationForm.words and known is None:
        raise ConfigError(
            "task.observation=words",
            f"is not available for task.env_id={config.env_id}, which is only known as numbers",
            "use task.observation=short",
        )
    if known is not None and config.observation is not ObservationForm.numbers:
        return
    for seat, space in seen.items():
        if reason := unwritable_reason(space):
            raise ConfigError(
                f"task.env_id={config.env_id}",
                f"has observations that cannot be written: the space of {seat} {reason}",
                "use task.observation=short"
                if known
                else "use another environment, or wrap it and use task=environment",
            )


def _make_describer(
    form: ObservationForm, seen: Mapping[str, Any], texts: Mapping[str, ActionTexts], known: GameText | None
) -> Callable[[str, Any], str]:
    if known is None or form is ObservationForm.numbers:
        return lambda seat, observation: format_numbers(seen[seat], observation)
    tell = known.short if form is ObservationForm.short else known.words
    return lambda seat, observation: tell(observation, texts[seat])
