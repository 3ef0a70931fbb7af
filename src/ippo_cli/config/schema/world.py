"""`task=` with an environment: games, puzzles and user-defined environments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ippo_cli.config.constraints import Name, PositiveFloat, PositiveInt
from ippo_cli.config.marks import Changeable, EvalCompute, InEval
from ippo_cli.config.schema.registry import option
from ippo_cli.config.schema.task import Mistake, TaskConfig, find_short_alphabet

ENVIRONMENTS = "ippo_cli.tasks.environments"
SEEDS = f"{ENVIRONMENTS}.examples:seed_examples"  # examples of environments that are seeded


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
    eval_size: InEval[PositiveInt]  # number of held-out seeds; none of them is a training seed
    num_workers: EvalCompute[PositiveInt]  # threads that step environments; 1 = sequentially

    @property
    def episode_workers(self) -> int:
        return self.num_workers

    @property
    def forgets_earlier_turns(self) -> bool:
        """Whether `rollout.context=last_only` is the preset."""
        return False


@dataclass
class SteppedEnvironmentConfig(EnvironmentTaskConfig):
    """An environment that is stepped until the episode ends."""

    max_turns: InEval[PositiveInt | None]
    # turns per agent after which an episode is truncated; null = the environment's limit

    @property
    def max_answers(self) -> int | None:
        return self.max_turns


@dataclass
class ConstructedEnvironmentConfig(SteppedEnvironmentConfig):
    """A stepped environment that is an object of the run's process."""

    environment_args: InEval[dict[str, Any]]  # keyword arguments of the environment's constructor


@option(
    "task",
    "ladder",
    examples="ippo_cli.tasks.ladder:ladder_examples",
    environment="ippo_cli.tasks.ladder:make_ladder_factory",
)
@dataclass
class LadderConfig(EnvironmentTaskConfig):
    """An agent moves from letter to letter by a stride given in the first prompt; every correct turn is rewarded."""

    alphabet: InEval[str]  # letters in order; the first follows the last
    strides: InEval[PositiveInt]  # strides are 1 to this many letters
    num_rungs: InEval[PositiveInt]  # turns per episode

    def find_mistakes(self) -> Iterator[Mistake]:
        yield from find_short_alphabet(self.alphabet)
        if self.strides >= (letters := len(set(self.alphabet))):
            rule = f"must be less than the {letters} letters of task.alphabet"
            yield Mistake(f"task.strides={self.strides}", rule, f"use at most {letters - 1}")

    @property
    def max_answers(self) -> int:
        return self.num_rungs


@option("task", "gymnasium", examples=SEEDS, environment=f"{ENVIRONMENTS}.gymnasium:make_gymnasium_factory")
@dataclass
class GymnasiumConfig(ConstructedEnvironmentConfig):
    """A Gymnasium environment with discrete actions; observations and actions are text."""

    env_id: InEval[Name | None]  # argument of gymnasium.make: FrozenLake-v1, or module:Name-v0 for your own
    observation: InEval[ObservationForm]
    # short (few characters) | words (sentences, with a map if available) | numbers
    invalid_reward: InEval[float]  # reward of a response without an action; the environment is not stepped

    @property
    def forgets_earlier_turns(self) -> bool:
        return True


@option("task", "pettingzoo", examples=SEEDS, environment=f"{ENVIRONMENTS}.pettingzoo:make_pettingzoo_factory")
@dataclass
class PettingzooConfig(ConstructedEnvironmentConfig):
    """A PettingZoo environment with discrete actions, turn-based or with all agents acting at once."""

    env_id: InEval[Name | None]  # name of the environment, such as classic/tictactoe_v3
    observation: InEval[ObservationForm]  # short (few characters) | words (sentences and boards) | numbers
    invalid_reward: InEval[float]  # reward of a response without a legal action; the environment is not stepped
    illegal_move: InEval[IllegalMove]  # retry (as for any invalid response) | lose (pass it to the game, which decides)
    opponent: InEval[Opponent]  # policy of seats without an agent: random (uniform over legal actions)
    seat: InEval[int | str]
    # seat of the first agent, from 0; the others follow. alternate = chosen by the example's seed

    @property
    def forgets_earlier_turns(self) -> bool:
        return True


@option("task", "textarena", examples=SEEDS, environment=f"{ENVIRONMENTS}.textarena:make_textarena_factory")
@dataclass
class TextArenaConfig(ConstructedEnvironmentConfig):
    """A TextArena game; the agents are its players, in their order."""

    env_id: InEval[Name | None]  # name of the game, such as SimpleNegotiation-v0, or module:Class without a name
    payoff: InEval[Name | None]
    # entry of the game's state; its growth is the reward; {player} = the player's number; null = TextArena's reward


@option(
    "task",
    "reasoning_gym",
    examples=SEEDS,
    environment=f"{ENVIRONMENTS}.reasoning_gym:make_reasoning_gym_factory",
)
@dataclass
class ReasoningGymConfig(EnvironmentTaskConfig):
    """Questions of a reasoning_gym dataset, scored by the dataset itself."""

    dataset: InEval[Name | None]  # name of the dataset in reasoning_gym, such as chain_sum
    dataset_args: InEval[dict[str, Any]]  # settings of the dataset, such as {min_terms: 2, max_terms: 3}
    num_turns: InEval[PositiveInt]  # attempts per question; after a wrong answer the agent receives its score
    answer_tag: InEval[str | None]  # the answer is the content of the last <tag>...</tag>; null = the whole response

    @property
    def max_answers(self) -> int:
        return self.num_turns


@option(
    "task",
    "environment",
    examples=SEEDS,
    environment=f"{ENVIRONMENTS}.user_environment:make_user_environment_factory",
)
@dataclass
class UserEnvironmentConfig(ConstructedEnvironmentConfig):
    """A user-defined environment: an object with Gymnasium's reset, step and close, on text."""

    environment: InEval[Name | None]
    # path/to/file.py:function or module:function; called with environment_args, returns it


@option("task", "openenv", examples=SEEDS, environment=f"{ENVIRONMENTS}.openenv:make_openenv_factory")
@dataclass
class OpenEnvConfig(SteppedEnvironmentConfig):
    """An environment of an OpenEnv server; every episode in progress has a separate session."""

    url: InEval[Changeable[Name | None]]  # address of the server, such as http://127.0.0.1:8000
    token_env: EvalCompute[Changeable[Name | None]]
    # name of the environment variable that holds the server's bearer token; null = no token
    action_field: InEval[Name | None]
    # field of the action that takes the response; null = the only field without a default, from the server's schema
    action_function: InEval[Name | None]
    # path.py:function that converts a response to an action (dict); replaces action_field
    observation_field: InEval[Name | None]
    # field of the observation that the agent reads; null = the only text field, from the server's schema
    observation_function: InEval[Name | None]
    # path.py:function that converts an observation (dict) to text; replaces observation_field
    reset_args: InEval[dict[str, Any]]  # arguments of reset, in addition to the example's seed
    invalid_reward: InEval[float]  # reward of a response without a valid action; the environment is not stepped
    max_sessions: EvalCompute[Changeable[PositiveInt | None]]
    # sessions that each rank has at the same time; more episodes wait; null = one per episode
    timeout_s: EvalCompute[Changeable[PositiveFloat]]  # an answer that takes longer fails its episode

    @property
    def max_environments(self) -> int | None:
        return self.max_sessions
