"""Data types: each stage of an iteration returns the type that the next stage takes.

Legend for every shape in this project: **B** sequences, **P** prompt tokens (left-padded), **R** response tokens
(right-padded), **V** vocabulary, **K** turns.

Column ``t`` of every ``[B, R]`` tensor refers to choosing ``response_ids[:, t]``: its log-probability, the value of the
state *before* it, the reward *for* it. Masks are boolean, named by what they keep, and come from lengths, never from
comparing ids with the padding id.

A worked example, one sequence with prompt ``5 6`` (left-padded to P=3) and response ``7 8 <eos>``
(right-padded to R=4), scored 1.0:

    prompt_ids      . 5 6          response_ids    7    8    2    .
    prompt_mask     0 1 1          response_mask   1    1    1    0
                                   turn            0    0    0   -1     length 3
                                   logprobs       -.1  -.2  -.3   0     log pi(7|5 6), log pi(8|5 6 7), ...
                                   values          .5   .6   .7   0     V(5 6), V(5 6 7), V(5 6 7 8)
                                   rewards          0    0    1   0     the score, on the last action token
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

C = TypeVar("C", bound=Any)

Example = Mapping[str, Any]
"""One row of a task's data: the fields that templates and rewards may use."""

Lesson = Sequence[tuple[str, str]]
"""One agent's turns of one warm-start episode: (prompt, answer) pairs."""


def take_rows(carrier: Any, rows: Sequence[int] | Tensor) -> dict[str, Any]:
    """Return every field of a carrier at the given rows, as keyword arguments."""
    rows = rows.tolist() if isinstance(rows, Tensor) else rows
    picked: dict[str, Any] = {}
    for entry in fields(carrier):
        value: Any = getattr(carrier, entry.name)
        if isinstance(value, Tensor):
            picked[entry.name] = value[torch.as_tensor(rows, dtype=torch.long, device=value.device)]
        elif is_dataclass(value):
            picked[entry.name] = type(value)(**take_rows(value, rows))
        else:
            picked[entry.name] = [value[row] for row in rows]
    return picked


def concatenate_rows(carriers: Sequence[C]) -> C:
    """Concatenate the rows of several carriers of one type, in order; a single carrier is returned unchanged.

    Prompt columns are padded on the left, all others on the right: with 0 and False, and `turn` with -1.
    """
    if len(carriers) == 1:
        return carriers[0]
    tensors: dict[tuple[int, ...], Tensor] = {}  # fields that share a tensor share the result
    columns: dict[str, Any] = {}
    for entry in fields(carriers[0]):
        parts = [getattr(carrier, entry.name) for carrier in carriers]
        if isinstance(parts[0], Tensor):
            key = tuple(id(part) for part in parts)
            if key not in tensors:
                tensors[key] = _stack_column(entry.name, parts)
            columns[entry.name] = tensors[key]
        elif is_dataclass(parts[0]):
            columns[entry.name] = concatenate_rows(parts)
        else:
            columns[entry.name] = [row for part in parts for row in part]
    return replace(carriers[0], **columns)


def _stack_column(name: str, parts: Sequence[Tensor]) -> Tensor:
    if parts[0].dim() == 1:
        return torch.cat(list(parts))
    width = max(part.shape[1] for part in parts)
    result = parts[0].new_full((sum(map(len, parts)), width), -1 if name == "turn" else 0)
    row = 0
    for part in parts:
        columns = slice(width - part.shape[1], width) if name.startswith("prompt_") else slice(part.shape[1])
        result[row : row + len(part), columns] = part
        row += len(part)
    return result


def move_carrier(carrier: C, device: torch.device | str) -> C:
    """Return a carrier with its tensors on a device, also those of carriers in it; fields that share a tensor still do.

    The host does not wait for copies to a GPU.
    """
    device, moved = torch.device(device), dict[int, Tensor]()

    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in moved:
                moved[id(value)] = move_tensor(value, device)
            return moved[id(value)]
        if isinstance(value, tuple):
            return tuple(map(move, value))
        return move_carrier(value, device) if is_dataclass(value) else value

    return replace(carrier, **{entry.name: move(getattr(carrier, entry.name)) for entry in fields(carrier)})


def move_tensor(value: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; the host does not wait for a copy to a GPU."""
    if device.type == "cuda" and value.device.type == "cpu":
        # A copy of strided memory would wait: torch makes it contiguous in memory that is not pinned.
        return value.contiguous().pin_memory().to(device, non_blocking=True)
    return value.to(device)


def trim_columns(carrier: C, width: int, keep: int) -> C:
    """Cut the response columns of a carrier (those of size `width`) to the first `keep`."""
    columns = {
        entry.name: value[:, :keep]
        for entry in fields(carrier)
        if isinstance(value := getattr(carrier, entry.name), Tensor)
        and value.dim() == 2
        and value.shape[1] == width
        and not entry.name.startswith("prompt_")
    }
    return replace(carrier, **columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The examples of this rank's episodes in one iteration, the same for every agent."""

    examples: list[Example]  # B
    index: Tensor  # [B] int64: global sample index, unique within a run; seeds the sampling of the episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled response to one prompt. Tensors are on the CPU."""

    ids: Tensor  # [n] int64, the stop token included
    logprobs: Tensor  # [n] float32, tempered and unfiltered
    behavior_logprobs: Tensor  # [n] float32, of the filtered sampling distribution; the same tensor without a filter
    text: str  # the decoded tokens without special tokens
    finished: bool  # ended by a stop token or stop string; False: truncated by a limit
    versions: Tensor | None = None  # [n] int64: number of the transfer of the weights that sampled each token


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One agent's action in one step of an episode."""

    agent: str
    step: int  # of the environment; agents that act simultaneously share it
    observation: str  # the text that the agent received since its last turn
    prompt: list[int]  # all token ids that the policy was conditioned on
    completion: Completion
    answer: str | None = None  # the text for other agents and rewards, without tool calls; None: the completion's

    @property
    def text(self) -> str:
        """The text that other agents and rewards read."""
        return self.completion.text if self.answer is None else self.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One sampled episode: turns, observations and rewards of all agents."""

    example: Example
    index: int  # as in `Batch`
    turns: list[Turn]  # in the order of generation
    rewards: list[Mapping[str, float]]  # by step, of the environment; empty where a reward function scores the episode
    final: Mapping[str, list[int]]  # the prompt of an agent's next turn, where it received a final observation
    last_observations: Mapping[str, str]  # the text of the final observation
    terminated: bool  # the episode ended by itself; False: truncated, so the remaining return is unknown
    unfinished: frozenset[str]  # agents that were truncated although the episode terminated
    ended: frozenset[str]  # agents that terminated by themselves, however the episode ended
    truncation: str  # reason of the truncation: environment, turns or context; empty if not truncated
    failure: Exception | None  # exception of the environment: the episode has no reward then
    parts: Mapping[str, float]  # further metrics of the environment, for the log
    roles: Mapping[str, str] = field(default_factory=dict)  # by agent, where the environment has roles, such as seats
    partners: frozenset[str] = frozenset()  # agents played by snapshots of earlier weights: not trained on

    def trainable_turns(self, agent: str) -> list[Turn]:
        """Return the turns that an agent generated with its current weights: those that can be trained on."""
        return [] if agent in self.partners else self.turns_of_agent(agent)

    def turns_of_agent(self, agent: str) -> list[Turn]:
        """Return all turns of one agent."""
        return [turn for turn in self.turns if turn.agent == agent]

    of = turns_of_agent  # the former names, which reward functions of users may call
    own = trainable_turns

    def finished(self, agent: str) -> bool:
        """Whether an agent terminated by itself; False means truncated."""
        return agent in self.ended or (self.terminated and agent not in self.unfinished)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedTurn:
    """A turn with a prompt that does not extend the row's tokens; it is encoded as a separate sequence."""

    column: int  # the first response column after the prompt
    prompt: list[int]  # all token ids before that column


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One agent's rows: row b is its part of episode b, with the log-probabilities at sampling time."""

    prompt_ids: Tensor  # [B, P] int64, left-padded
    prompt_mask: Tensor  # [B, P] bool
    response_ids: Tensor  # [B, R] int64, right-padded
    response_mask: Tensor  # [B, R] bool: 1 on tokens this agent chose, EOS included; may have holes (observations)
    turn: Tensor  # [B, R] int64: the turn of each action token, -1 elsewhere
    length: Tensor  # [B] int64: response columns in use, observations after the last action token included
    logprobs: Tensor  # [B, R] float32, tempered and unfiltered: the denominator of the ratio
    behavior_logprobs: Tensor  # [B, R] float32, of the filtered sampling distribution; the same tensor without filters
    finished: Tensor  # [B] bool: whether the agent terminated; False means truncated
    texts: list[str]  # B
    detached: list[list[DetachedTurn]] = field(default_factory=list)  # B, by column; default: no row has any
    cut_turns: list[list[int]] = field(default_factory=list)  # B: turns with a response that a token limit ended

    def __post_init__(self) -> None:
        if not self.detached:
            object.__setattr__(self, "detached", [[] for _ in self.texts])
        if not self.cut_turns:
            object.__setattr__(self, "cut_turns", [[] for _ in self.texts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The rewards of one agent's rows."""

    score: Tensor  # [B, K] float32, by turn, after the credit baseline and the processors: the training signal
    raw: Tensor  # [B, K] float32: weighted sum of team and individual rewards; `score` itself if unprocessed
    parts: dict[str, Tensor]  # name -> [B] float32, for the log only; NaN where a part does not apply
    valid: Tensor  # [B] bool: False where the reward failed or the agent had no turn; such rows are never trained on
    failed: Tensor  # [B] bool: the reward or the episode failed
    credit: dict[str, Tensor] = field(default_factory=dict)  # [B, K], by credit method; NaN where unknown
    measured: Tensor = field(default_factory=lambda: torch.empty(0))
    # [B, K] bool: turns with a credit, the others are not trained on; default all

    def __post_init__(self) -> None:
        if self.measured.dim() == 1:
            object.__setattr__(self, "measured", torch.ones_like(self.score, dtype=torch.bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticView:
    """The input of a centralised critic for one agent's rows, and the positions of that agent's actions in it."""

    rollout: Rollout  # row b is episode b; action columns are those of states with a value, log-probabilities are 0
    column: Tensor  # [B, R] int64: by action token of the agent's rows, the view's column with its value; 0 elsewhere
    source: Tensor  # [B, R'] int64: by action column of the view, the action token that gives its targets; 0 elsewhere
    is_truncated: Tensor  # [B] bool: rows that were truncated to the critic's context

    def gather_values(self, values: Tensor, own: Rollout) -> Tensor:
        """Gather values of the view's columns, `[B, R']`, at the action tokens of the agent's own rows, `[B, R]`."""
        return values.gather(1, self.column).masked_fill(~own.response_mask, 0.0)

    def scatter_targets(self, targets: Targets) -> Targets:
        """Scatter the targets of the agent's own rows to the view's columns."""
        mask, width = self.rollout.response_mask, self.column.shape[1]
        columns = {
            entry.name: value.gather(1, self.source).masked_fill(~mask, 0)
            for entry in fields(targets)
            if (value := getattr(targets, entry.name)).dim() == 2 and value.shape[1] == width
        }
        return replace(targets, **columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """All data of an iteration: every agent's rows on this rank, and their scores."""

    batch: Batch
    episodes: list[Episode]
    sampled: Mapping[str, Rollout]  # with the log-probabilities of the sampler
    rollouts: Mapping[str, Rollout]  # with recomputed log-probabilities; the same objects where none are recomputed
    scores: Mapping[str, Scores]
    greedy: Mapping[str, tuple[Rollout, Scores]]  # greedy responses to the same prompts; empty where not needed
    views: Mapping[str, CriticView] = field(default_factory=dict)  # of agents with a centralised critic
    additions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of estimators, by name and agent
    shared: Mapping[str, Mapping[str, Rollout]] = field(default_factory=dict)
    # with `team.share_rollouts`, by trained agent and author: the author's rows, with log-probabilities of the agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The training targets of one agent's rollout."""

    rewards: Tensor  # [B, R] float32, KL term included
    values: Tensor  # [B, R] float32: V of the state before each token, or of its turn, when sampled; 0 without a critic
    final_values: Tensor  # [B] float32: V after the last action token (the bootstrap value of a truncated row)
    ref_logprobs: Tensor  # [B, R] float32; equal to logprobs without a reference
    advantages: Tensor  # [B, R] float32
    returns: Tensor  # [B, R] float32, from raw advantages
    loss_mask: Tensor  # [B, R] bool: response_mask without excluded rows (invalid, or truncated and masked)
    value_mask: Tensor  # [B, R] bool: where values are regressed: loss_mask, or only the last token of each turn
    behavior_weights: Tensor  # [B, R] float32: importance weight of the policy loss, 1 unless sampler and policy differ
    sample_counts: Tensor  # [B] int64: how often a row is trained on in an epoch; 1 without resampling by score
    positive: Tensor  # [B] bool: rows with the likelihood term of `algorithm.positive_nll`
    value_std: Tensor = field(default_factory=lambda: torch.empty(0))
    # [B, R] float32: standard deviation over the critics of an ensemble; default 0
    entropy_mask: Tensor = field(default_factory=lambda: torch.empty(0))
    # [B, R] bool: where the entropy bonus applies; default everywhere

    def __post_init__(self) -> None:
        if self.value_std.shape != self.values.shape:
            object.__setattr__(self, "value_std", torch.zeros_like(self.values))
        if self.entropy_mask.shape != self.values.shape:
            object.__setattr__(self, "entropy_mask", torch.ones_like(self.loss_mask))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Position of an update in the run: seeds the mini-batches and sets schedules."""

    seed: int
    iteration: int  # counted from 0
    num_iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """This rank's rows of one optimizer step, with the global counts that divide the losses."""

    rollout: Rollout
    targets: Targets
    num_tokens: int  # over all ranks and micro-batches of the step, where loss_mask is set
    num_sequences: int  # over all ranks and micro-batches: rows with a non-empty loss_mask
    num_values: int  # over all ranks and micro-batches, where value_mask is set
    agent: Tensor  # [b] int64: index of each row's agent among the agents that are trained together
    num_positive_tokens: int = 0  # over all ranks and micro-batches, where loss_mask is set in positive rows
    num_value_sequences: int  # over all ranks and micro-batches, with a non-empty value_mask
    loss_weight: float = 1.0  # of the gradients of its losses

    def select_rows(self, rows: Sequence[int] | Tensor) -> Self:
        """Return some of the rows as a micro-batch, trimmed to their used columns, with the same global counts."""
        rollout = Rollout(**take_rows(self.rollout, rows))
        width = max(int(rollout.length.max()), 1)
        return replace(
            self,
            rollout=trim_columns(rollout, self.rollout.response_ids.shape[1], width),
            targets=trim_columns(Targets(**take_rows(self.targets, rows)), self.rollout.response_ids.shape[1], width),
            agent=self.agent[torch.as_tensor(rows, dtype=torch.long, device=self.agent.device)],
        )

    def mask_all(self) -> Self:
        """Return the same rows with empty masks: keeps ranks in step where one has fewer micro-batches."""
        nothing = torch.zeros_like(self.targets.loss_mask)
        return replace(self, targets=replace(self.targets, loss_mask=nothing, value_mask=nothing))
