"""`task=`: the source of examples, and the agents that work on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, NamedTuple

from ippo_cli.config.constraints import Name, NotEmpty, PositiveInt, Range, UnitFloat
from ippo_cli.config.marks import InEval, InModelEval
from ippo_cli.config.schema.agent import AgentConfig
from ippo_cli.config.schema.registry import option


class Mistake(NamedTuple):
    """A wrong value: `key=value`, the rule, and what would work."""

    setting: str
    rule: str
    remedy: str


PROTOCOLS = ("parallel", "sequential", "dialogue", "calls")  # built-in protocols


class OverlongPrompts(str, Enum):
    error = "error"
    drop = "drop"


Data = Annotated[Any, NotEmpty()]  # a name, a list of names, or None


@dataclass
class CurriculumConfig:
    """Training prompts by their success rates: prompts outside of a band become rare, levels of difficulty unlock."""

    band_low: UnitFloat | None  # prompts with a lower success rate are too hard; null = no band
    band_high: UnitFloat | None  # prompts with a higher success rate are too easy; set both or neither
    outside_weight: UnitFloat  # how often prompts outside of the band are drawn, relative to others; 0 = never again
    success_score: float  # a response with at least this score (before the processors, mean over agents) is a success
    smoothing: Annotated[float, Range(0.0, 1.0, open_high=True)]
    # weight of a prompt's earlier success rate when it is drawn again; the rest is that of the new responses
    level_field: Name | None  # field of rows that names their level of difficulty; null = no levels
    levels: list[str]  # values of that field, the easiest first
    unlock_rate: UnitFloat  # mean success rate of a level's drawn prompts that unlocks the next level

    @property
    def is_active(self) -> bool:
        """Whether success rates decide anything."""
        return self.band_low is not None or self.level_field is not None


@dataclass
class TaskConfig:
    """The source of examples, and the agents that work on them."""

    kind: InEval[str]  # kind of the task; choose it with task=
    agents: dict[str, AgentConfig]  # agents by name
    primary_metric: InEval[str]  # evaluation metric that ranks checkpoints and jobs: `sampled/...` or `greedy/...`
    curriculum: CurriculumConfig

    def find_mistakes(self) -> Iterator[Mistake]:
        """Values that do not fit each other."""
        yield from ()

    @property
    def built_in_protocol(self) -> str | None:
        """The protocol by which agents act; None if an environment, a program or the user's protocol decides it."""
        return None

    @property
    def is_conversation(self) -> bool:
        """Whether agents answer examples and each other by a protocol, also by the user's."""
        return False

    @property
    def is_fixed_length(self) -> bool:
        """Whether no message decides who acts next and how often, calls of tools aside."""
        return self.built_in_protocol in ("parallel", "sequential", "dialogue")

    @property
    def is_one_turn_per_agent(self) -> bool:
        """Whether every agent acts exactly once: one message per agent, and no tools."""
        return False

    @property
    def max_answers(self) -> int | None:
        """The most turns that an episode gives an agent, without calls of tools; None if unknown."""
        return None

    @property
    def is_program(self) -> bool:
        """Whether a program calls the agents, with messages that may always begin a new history."""
        return False

    @property
    def episode_workers(self) -> int | None:
        """Threads that step environments or programs; None if it has neither."""
        return None

    @property
    def max_environments(self) -> int | None:
        """Environments of a process that may exist at once; None for no limit."""
        return None

    @property
    def chat_template_choice(self) -> bool | str:
        """Whether the tokenizer's chat template is applied: `auto` (if it has one), true or false."""
        return False

    @property
    def drops_overlong(self) -> bool:
        """Whether rows with too long prompts are excluded."""
        return False


@dataclass
class ConversationConfig(TaskConfig):
    """Agents receive an example and possibly each other's responses; a reward scores the responses."""

    protocol: InEval[str]
    # parallel (no messages) | sequential (from earlier agents) | dialogue (from all) | calls (the first agent calls
    # others) | path.py:Name
    num_turns: InEval[PositiveInt]  # turns per agent; with protocol=calls, the largest number

    @property
    def is_conversation(self) -> bool:
        return True

    @property
    def built_in_protocol(self) -> str | None:
        return self.protocol if self.protocol in PROTOCOLS else None

    @property
    def max_answers(self) -> int | None:
        return None if self.built_in_protocol is None else self.num_turns

    @property
    def has_one_message_per_agent(self) -> bool:
        """Whether the protocol gives every agent exactly one turn, in a fixed order."""
        return self.num_turns == 1 and self.protocol in ("parallel", "sequential")

    @property
    def is_one_turn_per_agent(self) -> bool:
        return self.has_one_message_per_agent and all(agent.tools is None for agent in self.agents.values())


@option("task", "sorting", examples="ippo_cli.tasks.small_tasks:sorting_examples")
@dataclass
class SortingConfig(ConversationConfig):
    """Sort distinct letters; examples are generated from the seed."""

    alphabet: InEval[str]  # letters of the examples
    length: InEval[PositiveInt]  # letters per example
    train_size: PositiveInt  # number of training examples
    eval_size: InEval[PositiveInt]  # number of held-out examples; none of them is a training example

    def find_mistakes(self) -> Iterator[Mistake]:
        if self.length > len(set(self.alphabet)):
            yield Mistake(
                f"task.length={self.length}",
                f"is more than the {len(set(self.alphabet))} letters of task.alphabet",
                "shorten it, or lengthen task.alphabet",
            )


@dataclass
class DataConfig(TaskConfig):
    """Rows of JSON Lines, CSV or Parquet files, of a Python function, or of a hub dataset."""

    train: InModelEval[Data]
    # file (.jsonl, .json, .csv, .tsv, .parquet), pattern, folder, list; path.py:function; hub dataset id
    train_split: InModelEval[str]  # split of a hub dataset
    train_size: PositiveInt | None  # use only the first rows; null = all
    eval: InEval[Data]  # held-out rows; same kinds of sources as train
    eval_split: InEval[str]  # split of a hub dataset
    eval_size: InEval[PositiveInt | None]  # use only the first rows; null = all
    eval_share: InEval[Annotated[float | None, Range(0.0, 1.0, open_low=True, open_high=True)]]
    # fraction of train to hold out; null = use eval
    weights: Data  # sampling weights of several sources in train; null = proportional to their rows
    columns: InEval[dict[str, Any]]
    # column of a field: {question: problem}; of a list the first that exists; a.b.0 = nested
    map: InEval[str | None]  # path.py:function that converts a row to an example; return None to exclude the row
    filter: InEval[str | None]  # rows to keep: a Jinja expression such as level == 'easy', or path.py:function
    streaming: InEval[bool]  # download only the first train_size and eval_size rows, and keep them in memory
    data_config: InEval[str | None]  # configuration name of a hub dataset
    chat_template: InEval[bool | str]  # apply the tokenizer's chat template: auto (if it has one) | true | false

    @property
    def chat_template_choice(self) -> bool | str:
        return self.chat_template


@option("task", "jsonl", examples="ippo_cli.tasks.jsonl:jsonl_examples")
@dataclass
class JsonlConfig(DataConfig, ConversationConfig):
    """A conversation about each row of the data."""

    overlong: InEval[OverlongPrompts]
    # rows with a prompt longer than rollout.max_prompt_tokens: error | drop (logs their number)

    @property
    def drops_overlong(self) -> bool:
        return self.overlong is OverlongPrompts.drop


@option("task", "probe_letters", examples="ippo_cli.tasks.small_tasks:letters_examples")
@dataclass
class LettersConfig(ConversationConfig):
    """A probe: random strings of letters; the answer is constant, or depends on the last letter."""

    alphabet: InEval[str]  # the letters that may occur; the letter after the last one is the first
    length: InEval[PositiveInt]  # letters per example, repetitions allowed
    train_size: PositiveInt  # number of training examples
    eval_size: InEval[PositiveInt]  # number of held-out examples; none of them is a training example


@option("task", "probe_grid", examples="ippo_cli.tasks.small_tasks:grid_examples")
@dataclass
class GridConfig(ConversationConfig):
    """A probe: walk from a start to a goal on a square grid, one letter per step; `reward=grid` scores the walk."""

    size: InEval[Annotated[int, Range(2, 9)]]  # cells per side, 2 to 9; cells have chess-board names
    train_size: PositiveInt  # number of training examples
    eval_size: InEval[PositiveInt]  # number of held-out examples; none of them is a training example


@option("task", "signalling", examples="ippo_cli.tasks.small_tasks:signalling_examples")
@dataclass
class SignallingConfig(ConversationConfig):
    """One agent observes a signal, the other acts on its message; agents must learn the meaning of messages."""

    signals: InEval[str]  # possible signals, one character per example
    symbols: str  # characters of messages in the warm start
    message_length: PositiveInt  # length of messages in the warm start
    train_size: PositiveInt  # number of training examples; signals occur equally often
    eval_size: InEval[PositiveInt]  # number of held-out examples, with the same signals

    def find_mistakes(self) -> Iterator[Mistake]:
        signals, messages = len(set(self.signals)), len(set(self.symbols)) ** self.message_length
        if signals < 2:
            yield Mistake(f"task.signals={self.signals}", "has only one signal", "use at least two characters")
        if messages < signals:
            yield Mistake(
                f"task.symbols={self.symbols} task.message_length={self.message_length}",
                f"make {messages} messages, fewer than the {signals} signals",
                "use more symbols, or longer messages",
            )
        for key, size in (("train_size", self.train_size), ("eval_size", self.eval_size)):
            if size < signals:
                yield Mistake(f"task.{key}={size}", f"is less than the {signals} signals", f"use at least {signals}")


@option("task", "relay", examples="ippo_cli.tasks.small_tasks:relay_examples")
@dataclass
class RelayConfig(ConversationConfig):
    """The first agent writes the letter after its own; the second writes the later of that letter and its own."""

    alphabet: InEval[str]  # the letters that may occur; the letter after the last one is the first
    train_size: PositiveInt  # number of training examples
    eval_size: InEval[PositiveInt]  # number of held-out examples; none of them is a training example

    def find_mistakes(self) -> Iterator[Mistake]:
        yield from find_short_alphabet(self.alphabet)


def find_short_alphabet(alphabet: str) -> Iterator[Mistake]:
    """The mistake of an alphabet with fewer than two letters."""
    if len(set(alphabet)) < 2:
        yield Mistake(f"task.alphabet={alphabet}", "has fewer than two letters", "use more of them")
