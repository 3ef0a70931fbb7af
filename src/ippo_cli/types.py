"""Data types: each stage of an iteration returns the type that the next stage takes.

Legend for every shape in this project: **B** sequences, **P** prompt tokens (left-padded), **R** response tokens
(right-padded), **V** vocabulary, **K** turns.

Column ``t`` of every ``[B, R]`` tensor refers to choosing ``response_ids[:, t]``: its log-probability, the value of the
state *before* it, the reward *for* it. Masks are boolean, named by what they keep, and come from lengths, never from
comparing ids with the padding id.

A worked example, one sequence whose prompt is ``5 6`` (left-padded to P=3) and whose response is ``7 8 <eos>``
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
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

C = TypeVar("C", bound=Any)

Example = Mapping[str, Any]
"""One row of a task's data: the fields that templates and rewards may use."""

Lesson = Sequence[tuple[str, str]]
"""One agent's turns of one warm-start episode: (prompt, answer) pairs."""


def take_rows(carrier: Any, rows: Sequence[int] | Tensor) -> dict[str, Any]:
    """Every field of a carrier at the given rows, as keyword arguments: a row always moves whole."""
    rows = rows.tolist() if isinstance(rows, Tensor) else rows
    picked: dict[str, Any] = {}
    for entry in fields(carrier):
        value = getattr(carrier, entry.name)
        if isinstance(value, Tensor):
            picked[entry.name] = value[torch.as_tensor(rows, dtype=torch.long, device=value.device)]
        else:
            picked[entry.name] = [value[row] for row in rows]
    return picked


def concatenate_rows(carriers: Sequence[C]) -> C:
    """The rows of several carriers of one type as one carrier, in their order; a single one is returned as it is.

    Prompt columns are padded on the left, all others on the right: with 0 and False, and `turn` with -1.
    """
    if len(carriers) == 1:
        return carriers[0]
    tensors: dict[tuple[int, ...], Tensor] = {}  # what is one tensor in every carrier stays one
    columns: dict[str, Any] = {}
    for entry in fields(carriers[0]):
        parts = [getattr(carrier, entry.name) for carrier in carriers]
        if isinstance(parts[0], Tensor):
            key = tuple(id(part) for part in parts)
            if key not in tensors:
                tensors[key] = _stack_column(entry.name, parts)
            columns[entry.name] = tensors[key]
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


def trim_columns(carrier: C, width: int, keep: int) -> C:
    """The carrier with its response columns (those of `width`) cut to the first `keep`."""
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
    """What an iteration works on: the examples of this rank's episodes, the same for every agent."""

    examples: list[Example]  # B
    index: Tensor  # [B] int64: global sample index, unique within a run; seeds what the episode samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a policy wrote after one prompt. Tensors stand on the CPU."""

    ids: Tensor  # [n] int64, the stop token included
    logprobs: Tensor  # [n] float32, tempered and unfiltered
    behavior_logprobs: Tensor  # [n] float32, under what was sampled from; the same tensor when no filter is on
    text: str  # exactly what the tokens say, special tokens left out
    finished: bool  # ended by a stop token or stop string; False: cut at a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One agent's part of one step of an episode."""

    agent: str
    step: int  # of the environment; agents that act at once share it
    observation: str  # what it was told since its last turn
    prompt: list[int]  # everything its policy read before it wrote
    completion: Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One sample: who spoke when, what each of them read, and what each was paid."""

    example: Example
    index: int  # as in `Batch`
    turns: list[Turn]  # in the order in which they were spoken
    rewards: list[Mapping[str, float]]  # by step: what the environment paid; empty where a reward judges the episode
    final: Mapping[str, list[int]]  # what an agent would have read next, where it was told something at the end
    last_observations: Mapping[str, str]  # what it was told then
    terminated: bool  # it ended by itself; False: cut, and what was still to come is not known
    unfinished: frozenset[str]  # agents whose part was cut although the episode has terminated
    ended: frozenset[str]  # agents whose own part has ended by itself, whatever became of the episode
    truncation: str  # why it was cut: environment, turns or context; empty where it was not
    failure: Exception | None  # what its environment raised: there is no reward then
    parts: Mapping[str, float]  # further numbers of the environment, for the log
    partners: frozenset[str] = frozenset()  # agents for whom earlier weights spoke: nothing is learnt from their turns

    def own(self, agent: str) -> list[Turn]:
        """One agent's turns that it spoke with its current weights: what may be learnt from."""
        return [] if agent in self.partners else self.of(agent)

    def of(self, agent: str) -> list[Turn]:
        """One agent's turns."""
        return [turn for turn in self.turns if turn.agent == agent]

    def finished(self, agent: str) -> bool:
        """Whether an agent's part ended by itself; False means truncated."""
        return agent in self.ended or (self.terminated and agent not in self.unfinished)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedTurn:
    """A turn whose prompt is no extension of what stands before it in its row: it is read as a sequence of its own."""

    column: int  # the first response column that is read after the prompt
    prompt: list[int]  # every token id before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One agent's rows: row b is its part of episode b, and how likely that was when it was written."""

    prompt_ids: Tensor  # [B, P] int64, left-padded
    prompt_mask: Tensor  # [B, P] bool
    response_ids: Tensor  # [B, R] int64, right-padded
    response_mask: Tensor  # [B, R] bool: 1 on tokens this agent chose, EOS included; may have holes (observations)
    turn: Tensor  # [B, R] int64: the turn of each action token, -1 elsewhere
    length: Tensor  # [B] int64: response columns in use, observations after the last action token included
    logprobs: Tensor  # [B, R] float32, tempered and unfiltered: what the ratio is against
    behavior_logprobs: Tensor  # [B, R] float32, under the sampling filters; the same tensor when none are on
    finished: Tensor  # [B] bool: ended by a stop token or stop string; False means truncated
    texts: list[str]  # B
    detached: list[list[DetachedTurn]] = field(default_factory=list)  # B, by column; left out: no row has any

    def __post_init__(self) -> None:
        if not self.detached:
            object.__setattr__(self, "detached", [[] for _ in self.texts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the reward thought of one agent's rows."""

    score: Tensor  # [B, K] float32, by turn: what is learnt from, less a baseline of credit and processed
    raw: Tensor  # [B, K] float32: team and own numbers mixed; the same tensor where that is what is learnt from
    parts: dict[str, Tensor]  # name -> [B] float32, for the log only; NaN where a part does not apply
    valid: Tensor  # [B] bool: False where the reward failed or the agent had no turn; such rows are never trained on
    failed: Tensor  # [B] bool: where the reward, or the episode, failed
    credit: dict[str, Tensor] = field(default_factory=dict)  # [B, K], by how it is measured; NaN where it is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticView:
    """What a centralised critic reads in place of one agent's rows, and where that agent's actions stand in it."""

    rollout: Rollout  # row b is episode b; action columns are those whose state has a value, log-probabilities are 0
    column: Tensor  # [B, R] int64: by action token of the agent's rows, the column here that has its value; 0 elsewhere
    source: Tensor  # [B, R'] int64: by action column here, the action token whose targets it learns; 0 elsewhere
    left_out: Tensor  # [B] bool: rows of which something did not fit into the critic's context

    def gathered(self, values: Tensor, own: Rollout) -> Tensor:
        """Values of the view's columns, `[B, R']`, at the action tokens of the agent's own rows, `[B, R]`."""
        return values.gather(1, self.column).masked_fill(~own.response_mask, 0.0)

    def scatter_targets(self, targets: Targets) -> Targets:
        """The targets of the agent's own rows at the view's columns."""
        mask, width = self.rollout.response_mask, self.column.shape[1]
        columns = {
            entry.name: value.gather(1, self.source).masked_fill(~mask, 0)
            for entry in fields(targets)
            if (value := getattr(targets, entry.name)).dim() == 2 and value.shape[1] == width
        }
        return replace(targets, **columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What an iteration learns from: every agent's rows of this rank, and what they were worth."""

    batch: Batch
    episodes: list[Episode]
    sampled: Mapping[str, Rollout]  # with the log-probabilities of the sampler
    rollouts: Mapping[str, Rollout]  # with those that ratios are against: the same objects where none are recomputed
    scores: Mapping[str, Scores]
    greedy: Mapping[str, tuple[Rollout, Scores]]  # greedy responses to the same prompts; empty where none are needed
    views: Mapping[str, CriticView] = field(default_factory=dict)  # of agents whose critic reads more than their rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What one agent should learn from its rollout."""

    rewards: Tensor  # [B, R] float32, KL term included
    values: Tensor  # [B, R] float32: V of the state before each token, or of its turn, when sampled; 0 without a critic
    final_values: Tensor  # [B] float32: V after the last action token (what a truncated row bootstraps from)
    ref_logprobs: Tensor  # [B, R] float32 (equal to logprobs where no reference is kept)
    advantages: Tensor  # [B, R] float32
    returns: Tensor  # [B, R] float32, from raw advantages
    loss_mask: Tensor  # [B, R] bool: response_mask less the rows that must not train (invalid, or truncated and masked)
    value_mask: Tensor  # [B, R] bool: where values are regressed: loss_mask, or only the last token of each turn
    behavior_weights: Tensor  # [B, R] float32: factor of the policy loss, 1 unless the sampler differs from the policy
    sample_counts: (
        Tensor  # [B] int64: how often a row is trained on in an epoch, 1 unless rows are drawn by their scores
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Where in the run an update stands: seeds the mini-batches and sets schedules."""

    seed: int
    iteration: int  # counted from 0
    num_iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """This rank's rows of one optimizer step, with the counts that losses are divided by."""

    rollout: Rollout
    targets: Targets
    num_tokens: int  # over all ranks and micro-batches of the step, where loss_mask is set
    num_sequences: int  # likewise: rows with a non-empty loss_mask
    num_values: int  # likewise: where value_mask is set
    agent: Tensor  # [b] int64: whose row it is, by its place among the agents that are trained together

    def rows(self, rows: Sequence[int] | Tensor) -> Self:
        """Some of the rows, trimmed to the columns they use, with the same global counts: a micro-batch."""
        rollout = Rollout(**take_rows(self.rollout, rows))
        width = max(int(rollout.length.max()), 1)
        return replace(
            self,
            rollout=trim_columns(rollout, self.rollout.response_ids.shape[1], width),
            targets=trim_columns(Targets(**take_rows(self.targets, rows)), self.rollout.response_ids.shape[1], width),
            agent=self.agent[torch.as_tensor(rows, dtype=torch.long, device=self.agent.device)],
        )

    def mask_all(self) -> Self:
        """The same rows with nothing to learn: keeps ranks in step where one has fewer micro-batches."""
        nothing = torch.zeros_like(self.targets.loss_mask)
        return replace(self, targets=replace(self.targets, loss_mask=nothing, value_mask=nothing))
