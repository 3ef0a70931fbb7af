"""`task=` with an environment: games, puzzles and user-defined environments."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ippo_cli.config.constraints import Name, PositiveInt
from ippo_cli.config.schema.task import TaskConfig


class ObservationForm(str, Enum):
    short = "short"
    words = "words"
    numbers = "numbers"


class IllegalMove(str, Enum):
    retry = "retry"
    lose = "lose"


class Opponent(str, Enum):
    random = "random"


@dataclass
class EnvironmentTaskConfig(TaskConfig):
    """An environment that returns observations and rewards; examples are seeds, generated from the run's seed."""

    train_size: PositiveInt  # number of training seeds
    eval_size: PositiveInt  # number of held-out seeds; none of them is a training seed
    num_workers: PositiveInt  # threads that step environments; 1 = sequentially


@dataclass
class SteppedEnvironmentConfig(EnvironmentTaskConfig):
    """An environment that is stepped until the episode ends."""

    environment_args: dict[str, Any]  # keyword arguments of the environment's constructor
    max_turns: PositiveInt | None  # turns per agent after which an episode is truncated; null = the environment's limit


@dataclass
class GymnasiumConfig(SteppedEnvironmentConfig):
    """A Gymnasium environment with discrete actions; observations and actions are text."""

    env_id: Name | None  # argument of gymnasium.make: FrozenLake-v1, or module:Name-v0 for your own
    observation: ObservationForm  # short (few characters) | words (sentences, with a map if available) | numbers
    invalid_reward: float  # reward of a response without an action; the environment is not stepped


@dataclass
class PettingzooConfig(SteppedEnvironmentConfig):
    """A PettingZoo environment with discrete actions, turn-based or with all agents acting at once."""

    env_id: Name | None  # name of the environment, such as classic/tictactoe_v3
    observation: ObservationForm  # short (few characters) | words (sentences and boards) | numbers
    invalid_reward: float  # reward of a response without a legal action; the environment is not stepped
    illegal_move: IllegalMove  # retry (as for any invalid response) | lose (pass it to the game, which decides)
    opponent: Opponent  # policy of seats without an agent: random (uniform over legal actions)
    seat: int | str  # seat of the first agent, from 0; the others follow. alternate = chosen by the example's seed


@dataclass
class ReasoningGymConfig(EnvironmentTaskConfig):
    """Questions of a reasoning_gym dataset, scored by the dataset itself."""

    dataset: Name | None  # name of the dataset in reasoning_gym, such as chain_sum
    dataset_args: dict[str, Any]  # settings of the dataset, such as {min_terms: 2, max_terms: 3}
    num_turns: PositiveInt  # attempts per question; after a wrong answer the agent receives its score
    answer_tag: str | None  # the answer is the content of the last <tag>...</tag>; null = the whole response


@dataclass
class UserEnvironmentConfig(SteppedEnvironmentConfig):
    """A user-defined environment: an object with Gymnasium's reset, step and close, on text."""

    environment: Name | None  # path/to/file.py:function or module:function; called with environment_args, returns it


@dataclass
class LadderConfig(EnvironmentTaskConfig):
    """An agent moves from letter to letter by a stride given in the first prompt; every correct turn is rewarded."""

    alphabet: str  # letters in order; the first follows the last
    strides: PositiveInt  # strides are 1 to this many letters
    num_rungs: PositiveInt  # turns per episode
