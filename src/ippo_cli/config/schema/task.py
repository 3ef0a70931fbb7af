"""`task=`: where examples come from, and who works on them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

from ippo_cli.config.constraints import NotEmpty, PositiveInt, Range
from ippo_cli.config.schema.agent import AgentConfig


class TaskKind(str, Enum):
    sorting = "sorting"
    jsonl = "jsonl"
    probe_letters = "probe_letters"
    probe_grid = "probe_grid"
    signalling = "signalling"
    relay = "relay"
    ladder = "ladder"
    gymnasium = "gymnasium"
    pettingzoo = "pettingzoo"
    reasoning_gym = "reasoning_gym"
    environment = "environment"


PROTOCOLS = ("parallel", "sequential", "dialogue")  # those that are not of the user's own


class TooLong(str, Enum):
    error = "error"
    drop = "drop"


Data = Annotated[Any, NotEmpty()]  # a name, a list of names, or nothing


@dataclass
class TaskConfig:
    """Where examples come from, and who works on them."""

    kind: TaskKind  # chosen with task=
    agents: dict[str, AgentConfig]  # the named agents
    primary_metric: str  # the evaluation metric that is the task's score: `sampled/...` or `greedy/...`


@dataclass
class ConversationConfig(TaskConfig):
    """Agents are told about an example, and may hear each other; a reward judges what they said."""

    protocol: str  # parallel (all at once) | sequential (those before are heard) | dialogue (all are) | path.py:Name
    num_turns: PositiveInt  # turns of each agent

    @property
    def is_one_turn_per_agent(self) -> bool:
        """Whether every agent has a single turn, in an order that is known beforehand."""
        return self.num_turns == 1 and self.protocol in ("parallel", "sequential")


@dataclass
class SortingConfig(ConversationConfig):
    """Distinct letters in random order are to be written in order, generated from the seed."""

    alphabet: str  # the letters that may occur
    length: PositiveInt  # letters per example
    train_size: PositiveInt  # number of training examples
    eval_size: PositiveInt  # number of held-out examples; none of them is a training example


@dataclass
class JsonlConfig(ConversationConfig):
    """Rows of JSON-lines, CSV or Parquet files, of a Python function, or of a dataset on the hub."""

    train: Data  # file (.jsonl, .json, .csv, .tsv, .parquet), pattern, folder, list; path.py:function; hub dataset id
    train_split: str  # split of a hub dataset
    train_size: PositiveInt | None  # use only the first rows; null = all
    eval: Data  # held-out rows, from the same
    eval_split: str  # split of a hub dataset
    eval_size: PositiveInt | None  # use only the first rows; null = all
    eval_share: Annotated[
        float | None, Range(0.0, 1.0, open_low=True, open_high=True)
    ]  # of train, held out; null = eval
    weights: Data  # of several sources in train: their shares of the prompts; null = as many as there are rows
    columns: dict[str, Any]  # fields by column: {question: problem}; of several the first that is there; a.b.0 = inside
    map: str | None  # path.py:function that makes an example of a row; None of it leaves the row out
    filter: str | None  # rows that are kept: an expression of Jinja's such as level == 'easy', or path.py:function
    too_long: TooLong  # rows whose prompt has more than rollout.max_prompt_tokens: error | drop (counted, and told)
    streaming: bool  # fetch no more than the first train_size and eval_size rows, and hold these in memory
    data_config: str | None  # configuration name of a hub dataset
    chat_template: bool | str  # through the tokenizer's chat template: auto (where there is one) | true | false


@dataclass
class LettersConfig(ConversationConfig):
    """A probe: random strings of letters; one answer is right for all of them, or the last letter decides."""

    alphabet: str  # the letters that may occur; the letter after the last one is the first
    length: PositiveInt  # letters per example, repetitions allowed
    train_size: PositiveInt  # number of training examples
    eval_size: PositiveInt  # number of held-out examples; none of them is a training example


@dataclass
class GridConfig(ConversationConfig):
    """A probe: from a start to a goal on a square grid, one letter per step; `reward=grid` scores the walk."""

    size: Annotated[int, Range(2, 9)]  # cells per side, 2 to 9: cells are named as on a chess board
    train_size: PositiveInt  # number of training examples
    eval_size: PositiveInt  # number of held-out examples; none of them is a training example


@dataclass
class SignallingConfig(ConversationConfig):
    """One agent sees a signal, the other acts on what the first one says; what messages mean is theirs to settle."""

    signals: str  # the characters that may be seen, one per example, and acted on
    symbols: str  # the characters of messages in the warm start
    message_length: PositiveInt  # and their length
    train_size: PositiveInt  # number of training examples; signals occur equally often
    eval_size: PositiveInt  # number of held-out examples, of the same signals


@dataclass
class RelayConfig(ConversationConfig):
    """One agent writes the letter after the one it reads; the other writes the later of that one and its own."""

    alphabet: str  # the letters that may occur; the letter after the last one is the first
    train_size: PositiveInt  # number of training examples
    eval_size: PositiveInt  # number of held-out examples; none of them is a training example
