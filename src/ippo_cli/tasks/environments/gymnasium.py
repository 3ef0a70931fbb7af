"""`task=gymnasium`: Gymnasium environments with discrete actions, as text."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.toy_text.blackjack import BlackjackEnv
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import GymnasiumConfig, ObservationForm
from ippo_cli.tasks.environment import Action, Step
from ippo_cli.tasks.environments.ids import check_registered, newer_version
from ippo_cli.tasks.environments.spaces import ActionTexts, format_numbers, unwritable_reason
from ippo_cli.types import Example

gymnasium.logger.min_level = gymnasium.logger.ERROR  # its warnings are replaced by the checks of ids

TABULAR = (FrozenLakeEnv, CliffWalkingEnv, TaxiEnv)
PADS = ("R", "G", "Y", "B")
PAD_NAMES = ("red", "green", "yellow", "blue")


@dataclass(frozen=True, slots=True)
class EnvironmentText:
    """Action names and observation formats of a known environment."""

    actions: Sequence[str]
    short: Callable[[Any, Any], str]  # (unwrapped environment, observation) -> text
    words: Callable[[Any, Any], str]


class GymnasiumEnvironment:
    """One agent in one Gymnasium environment.

    The example's seed determines the initial state; the seed passed to `reset` determines later random numbers.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        *,
        agent: str,
        actions: ActionTexts,
        describe: Callable[[Any], str],
        max_turns: int | None,
        invalid_reward: float,
    ) -> None:
        self.env = env
        self.agent = agent
        self.action_texts = actions
        self.describe = describe
        self.max_turns = max_turns
        self.invalid_reward = invalid_reward

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        observation, _ = self.env.reset(seed=example["seed"])
        self.env.unwrapped.np_random = np.random.default_rng(seed)
        self.turns = self.invalid = 0
        self.observation = self.describe(observation)
        return {self.agent: self.observation}

    def step(self, actions: Mapping[str, Action]) -> Step:
        action = self.action_texts.read(actions[self.agent].text)
        self.turns += 1
        if action is None:
            self.invalid += 1
            reward, terminated, truncated = self.invalid_reward, False, False
        else:
            observation, reward, terminated, truncated, _ = self.env.step(action)
            self.observation = self.describe(observation)
        return Step(
            observations={self.agent: self.observation},
            rewards={self.agent: float(reward)},
            terminated=bool(terminated),
            truncated=not terminated and (bool(truncated) or self.turns == self.max_turns),
            parts={"invalid": float(self.invalid)},
        )

    def actions(self) -> Mapping[str, Sequence[str]]:
        """Legal actions by agent."""
        return {self.agent: [self.action_texts.write(action) for action in self.action_texts.actions]}

    def close(self) -> None:
        self.env.close()


def make_gymnasium_factory(config: GymnasiumConfig) -> Callable[[], GymnasiumEnvironment]:
    """Return a factory of environments; `ConfigError` if one cannot be created or written as text."""
    assert config.env_id is not None
    if ":" not in config.env_id:  # with `module:id`, importing the module registers the id
        check_registered(
            f"task.env_id={config.env_id}",
            config.env_id,
            gymnasium.registry,
            kind="environment of Gymnasium",
            listing="import gymnasium; gymnasium.pprint_registry()",
        )
    first = _make(config)
    known = _find_known(first)
    actions = _action_texts(config, first.action_space, known)
    _check_observations(config, first, known)
    agent = next(iter(config.agents))

    def make() -> GymnasiumEnvironment:
        env = _copy_environment(first, config)
        return GymnasiumEnvironment(
            env,
            agent=agent,
            actions=actions,
            describe=_make_describer(config.observation, env, known, actions),
            max_turns=config.max_turns,
            invalid_reward=config.invalid_reward,
        )

    return make


def newer_environment(env_id: str) -> str | None:
    """Return the newest version if `env_id` is an older one; else None."""
    return newer_version(env_id, gymnasium.registry)


def _make(config: GymnasiumConfig) -> gymnasium.Env:
    assert config.env_id is not None
    setting = f"task.env_id={config.env_id} task.environment_args={config.environment_args}"
    try:
        env = gymnasium.make(config.env_id, disable_env_checker=True, **config.environment_args)
    except Exception as error:  # raised by the environment's code
        raise ConfigError(
            setting,
            f"cannot be created ({type(error).__name__}: {error!s:.300})",
            "see its documentation for arguments and required packages",
        ) from error
    if isinstance(env.unwrapped, FrozenLakeEnv) and env.spec is not None:
        arguments = {"map_name": "4x4"} | env.spec.kwargs
        if arguments["map_name"] is None and arguments.get("desc") is None:
            raise ConfigError(setting, "draws a different map in every process", "set task.environment_args.desc")
    return env


def _copy_environment(first: gymnasium.Env, config: GymnasiumConfig) -> gymnasium.Env:
    """Create another instance. Tabular environments share their read-only tables, which are slow to build."""
    if type(first.unwrapped) not in TABULAR or not _has_default_wrappers(first):
        return _make(config)
    env = copy.copy(first.unwrapped)
    limit = first.spec.max_episode_steps if first.spec is not None else None
    return env if limit is None else TimeLimit(env, limit)


def _has_default_wrappers(env: gymnasium.Env) -> bool:
    """Whether an environment has only the wrappers that `gymnasium.make` adds."""
    while isinstance(env, gymnasium.Wrapper):
        if type(env) not in (TimeLimit, OrderEnforcing):
            return False
        env = env.env
    return True


def _action_texts(config: GymnasiumConfig, space: gymnasium.Space, known: EnvironmentText | None) -> ActionTexts:
    if not isinstance(space, spaces.Discrete):
        raise ConfigError(
            f"task.env_id={config.env_id}",
            f"has actions that are not discrete ({space})",
            "use an environment with a Discrete action space",
        )
    return ActionTexts(int(space.n), start=int(space.start), names=known.actions if known else ())


def _check_observations(config: GymnasiumConfig, env: gymnasium.Env, known: EnvironmentText | None) -> None:
    if config.observation is ObservationForm.words and known is None:
        raise ConfigError(
            "task.observation=words",
            f"is not available for task.env_id={config.env_id}, which is only known as numbers",
            "use task.observation=short",
        )
    if known is None and (reason := unwritable_reason(env.observation_space)):
        raise ConfigError(
            f"task.env_id={config.env_id}",
            f"has observations that cannot be written: their space {reason}",
            "use another environment, or wrap it and use task=environment",
        )


def _make_describer(
    form: ObservationForm, env: gymnasium.Env, known: EnvironmentText | None, actions: ActionTexts
) -> Callable[[Any], str]:
    if known is None or form is ObservationForm.numbers:
        return lambda observation: format_numbers(env.observation_space, observation)
    if form is ObservationForm.short:
        return lambda observation: known.short(env.unwrapped, observation)
    return lambda observation: f"{known.words(env.unwrapped, observation)} Actions: {actions.describe()}."


def _find_known(env: gymnasium.Env) -> EnvironmentText | None:
    """Return the known texts of an environment; None if a wrapper changed its observations or actions."""
    inner = env.unwrapped
    if env.observation_space != inner.observation_space or env.action_space != inner.action_space:
        return None
    return next((known for kind, known in KNOWN_ENVIRONMENTS.items() if isinstance(inner, kind)), None)


def _cell(row: int, column: int, rows: int) -> str:
    """Row and column from 0, without a comma if all rows have one digit: `00`, `311`."""
    return f"{row}{column}" if rows <= 10 else f"{row},{column}"


def _grid_words(rows: Sequence[str], row: int, column: int) -> str:
    """A map with the agent's cell as `*`, and its position."""
    lines = [line if number != row else line[:column] + "*" + line[column + 1 :] for number, line in enumerate(rows)]
    return f"Row {row}, column {column}, shown as * on the map:\n" + "\n".join(lines) + "\n"


def _lake_short(env: FrozenLakeEnv, state: int) -> str:
    return _cell(*divmod(int(state), env.ncol), env.nrow)


def _lake_words(env: FrozenLakeEnv, state: int) -> str:
    rows = ["".join(tile.decode() for tile in line) for line in env.desc.tolist()]
    return _grid_words(rows, *divmod(int(state), env.ncol)) + "S start, F frozen, H hole, G goal."


def _cliff_short(env: CliffWalkingEnv, state: int) -> str:
    return _cell(*divmod(int(state), env.shape[1]), env.shape[0])


def _cliff_words(env: CliffWalkingEnv, state: int) -> str:
    height, width = env.shape
    rows = ["." * width] * (height - 1) + ["S" + "C" * (width - 2) + "G"]
    return _grid_words(rows, *divmod(int(state), width)) + "S start, C cliff, G goal."


def _taxi_short(env: TaxiEnv, state: int) -> str:
    """Row, column, passenger position (T: in the taxi) and destination: `23TG`."""
    row, column, passenger, destination = env.decode(int(state))
    return f"{row}{column}{(*PADS, 'T')[passenger]}{PADS[destination]}"


def _taxi_words(env: TaxiEnv, state: int) -> str:
    row, column, passenger, destination = env.decode(int(state))
    rows = [b"".join(line).decode() for line in env.desc.tolist()]
    grid = _grid_words(rows, row + 1, 2 * column + 1).partition("map:")[2]  # the map has borders and walls
    waits = "is in the taxi" if passenger == len(PADS) else f"waits at {PAD_NAMES[passenger]}"
    return (
        f"The taxi is in row {row}, column {column}, shown as * on the map, where | is a wall:{grid}"
        f"The passenger {waits} and wants to get to {PAD_NAMES[destination]}."
    )


def _blackjack_short(env: BlackjackEnv, observation: tuple[int, int, int]) -> str:
    """The player's sum, `a` if an ace counts 11, and the dealer's card (1 is an ace): `17a 10`."""
    total, dealer, ace = observation
    return f"{int(total)}{'a' if ace else ''} {int(dealer)}"


def _blackjack_words(env: BlackjackEnv, observation: tuple[int, int, int]) -> str:
    total, dealer, ace = observation
    held = " with an ace that counts 11" if ace else ""
    return f"You have {int(total)}{held}. The dealer shows {'an ace' if dealer == 1 else int(dealer)}."


KNOWN_ENVIRONMENTS: dict[type[gymnasium.Env], EnvironmentText] = {
    FrozenLakeEnv: EnvironmentText(("left", "down", "right", "up"), _lake_short, _lake_words),
    CliffWalkingEnv: EnvironmentText(("up", "right", "down", "left"), _cliff_short, _cliff_words),
    TaxiEnv: EnvironmentText(("south", "north", "east", "west", "pickup", "dropoff"), _taxi_short, _taxi_words),
    BlackjackEnv: EnvironmentText(("stick", "hit"), _blackjack_short, _blackjack_words),
}
