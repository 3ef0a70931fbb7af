"""`task=` where an environment answers: games, puzzles and environments of one's own."""

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
    """An environment that answers by itself and pays as it goes; its examples are seeds, drawn from the run's seed."""

    train_size: PositiveInt  # number of training seeds
    eval_size: PositiveInt  # number of held-out seeds; none of them is a training seed
    num_workers: PositiveInt  # threads that step environments; 1 = one after another


@dataclass
class SteppedEnvironmentConfig(EnvironmentTaskConfig):
    """A world that is stepped until it ends."""

    environment_args: dict[str, Any]  # keyword arguments for whatever makes the environment
    max_turns: PositiveInt | None  # turns of an agent after which an episode is truncated; null = no limit but its own


@dataclass
class GymnasiumConfig(SteppedEnvironmentConfig):
    """A Gymnasium environment with discrete actions, read and answered as text."""

    env_id: Name | None  # what gymnasium.make takes, such as FrozenLake-v1, or module:Name-v0 for one's own
    observation: ObservationForm  # short (few characters) | words (sentences, with a map where there is one) | numbers
    invalid_reward: float  # what an answer that names no action is paid; the environment is not stepped then


@dataclass
class PettingzooConfig(SteppedEnvironmentConfig):
    """A PettingZoo environment with discrete actions, turn-based or with all agents acting at once."""

    env_id: Name | None  # what pettingzoo.make takes, such as classic/tictactoe_v3
    observation: ObservationForm  # short (few characters) | words (sentences and boards) | numbers
    invalid_reward: float  # what an answer that names no legal action is paid; the environment is not stepped then
    illegal_move: IllegalMove  # retry (as any invalid answer) | lose (handed to the game, which has a rule for it)
    opponent: Opponent  # who plays the seats beyond the task's agents: random (uniform over legal actions)
    seat: int | str  # the first agent's seat, from 0; the others follow. alternate = the example's seed decides


@dataclass
class ReasoningGymConfig(EnvironmentTaskConfig):
    """Questions of a reasoning_gym dataset, scored by the dataset itself."""

    dataset: Name | None  # its name in reasoning_gym, such as chain_sum
    dataset_args: dict[str, Any]  # its settings, such as {min_terms: 2, max_terms: 3}
    num_turns: PositiveInt  # answers that may be given to a question; a wrong one is told its score
    answer_tag: str | None  # the answer is what stands in the last <tag>...</tag>; null = the whole text


@dataclass
class UserEnvironmentConfig(SteppedEnvironmentConfig):
    """An environment of one's own: an object with Gymnasium's reset, step and close, in texts."""

    environment: Name | None  # path/to/file.py:function or module:function that returns it, given environment_args


@dataclass
class LadderConfig(EnvironmentTaskConfig):
    """An agent climbs from letter to letter by a stride that it is told once; every right turn is paid."""

    alphabet: str  # the rungs; the letter after the last one is the first
    strides: PositiveInt  # strides are 1 to this many letters
    num_rungs: PositiveInt  # turns of an episode
