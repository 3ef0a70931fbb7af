"""Converts episodes to padded rows, one per agent and episode; observations are masked."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ippo_cli.types import Completion, DetachedTurn, Episode, Rollout, Turn


def build_rollout(
    episodes: Sequence[Episode],
    agent: str,
    *,
    device: torch.device,
    filtered: bool,
    candidates: Sequence[Sequence[Turn]] | None = None,
    first_candidate: int = 0,
) -> Rollout:
    """Row b is the agent's part of episode b; its mask is empty if the agent has no turn with its current weights.

    A row begins with the agent's first prompt. Its response columns hold every completion, numbered by turn, the masked
    observations between them, and the final observation of a truncated episode. A turn is `detached` if its prompt does
    not extend the row's tokens. `filtered` says whether tokens were sampled from a filtered distribution. `candidates`:
    by row, further responses of the agent, as detached turns with numbers from `first_candidate`.
    """
    turns = [episode.trainable_turns(agent) for episode in episodes]
    rows = [_RowBuilder(own, episode.final.get(agent)) for own, episode in zip(turns, episodes, strict=True)]
    for row, further in zip(rows, candidates or [], strict=candidates is not None):
        row.add_detached(further, first_candidate)
    columns = Columns([row.parts for row in rows])
    # An agent without a turn gets one arbitrary token: a model cannot read an empty row.
    prompt_ids, prompt_mask = left_pad([own[0].prompt if own else [0] for own in turns])
    turn = columns.pad(columns.turn, empty=-1)
    logprobs = columns.pad(columns.concatenate("logprobs", torch.float32)).to(device)
    return Rollout(
        prompt_ids=prompt_ids.to(device),
        prompt_mask=prompt_mask.to(device),
        response_ids=columns.pad(columns.concatenate("ids", torch.long)).to(device),
        response_mask=(turn >= 0).to(device),
        turn=turn.to(device),
        length=columns.lengths.to(device),
        logprobs=logprobs,
        behavior_logprobs=columns.pad(columns.concatenate("behavior_logprobs", torch.float32)).to(device)
        if filtered
        else logprobs,
        finished=torch.tensor([episode.finished(agent) for episode in episodes], dtype=torch.bool, device=device),
        texts=[own[-1].completion.text if own else "" for own in turns],
        detached=[row.detached for row in rows],
        cut_turns=[row.cut_turns for row in rows],
    )


def tokens_between(before: Turn, prompt: Sequence[int]) -> list[int] | None:
    """The tokens between a completion and the next prompt's end; None if the prompt does not extend them."""
    known = before.prompt + before.completion.ids.tolist()
    return list(prompt[len(known) :]) if list(prompt[: len(known)]) == known else None


class Part:
    """Some columns of a row: a completion or an observation."""

    __slots__ = ("behavior_logprobs", "ids", "logprobs", "turn")

    def __init__(self, ids: Tensor, logprobs: Tensor, behavior_logprobs: Tensor, turn: int) -> None:
        self.ids, self.logprobs, self.behavior_logprobs, self.turn = ids, logprobs, behavior_logprobs, turn

    @classmethod
    def without_logprobs(cls, ids: Sequence[int], turn: int = -1) -> Part:
        """Observation tokens (log-probabilities set to 0)."""
        zeros = torch.zeros(len(ids))
        return cls(torch.tensor(ids, dtype=torch.long), zeros, zeros, turn)


class _RowBuilder:
    """The parts of one row, and its detached turns."""

    def __init__(self, turns: Sequence[Turn], final: Sequence[int] | None) -> None:
        self.parts: list[Part] = []
        self.detached: list[DetachedTurn] = []
        self.cut_turns: list[int] = []
        self._columns = 0
        for number, turn in enumerate(turns):
            if number:
                self._add_observation(turns[number - 1], turn.prompt)
            self._add_completion(turn.completion, number)
        if turns and final is not None:
            self._add_observation(turns[-1], final)

    def add_detached(self, turns: Sequence[Turn], first_number: int) -> None:
        """Add turns that are separate sequences."""
        for number, turn in enumerate(turns, first_number):
            self.detached.append(DetachedTurn(column=self._columns, prompt=list(turn.prompt)))
            self._add_completion(turn.completion, number)

    def _add_completion(self, completion: Completion, number: int) -> None:
        self._add(Part(completion.ids, completion.logprobs, completion.behavior_logprobs, number))
        if not completion.finished:
            self.cut_turns.append(number)

    def _add_observation(self, before: Turn, prompt: Sequence[int]) -> None:
        """Add the tokens that the agent read between a turn and its next prompt."""
        between = tokens_between(before, prompt)
        if between is None:
            self.detached.append(DetachedTurn(column=self._columns, prompt=list(prompt)))
        elif between:
            self._add(Part.without_logprobs(between))

    def _add(self, part: Part) -> None:
        self.parts.append(part)
        self._columns += len(part.ids)


class Columns:
    """The concatenated parts of all rows, and their positions in `[B, R]`; R is at least 1."""

    def __init__(self, rows: Sequence[Sequence[Part]]) -> None:
        self._parts = [part for row in rows for part in row]
        sizes = torch.tensor([len(part.ids) for part in self._parts], dtype=torch.long)
        numbers = torch.tensor([part.turn for part in self._parts], dtype=torch.long)
        self.turn = numbers.repeat_interleave(sizes)
        self.lengths = torch.tensor([sum(len(part.ids) for part in row) for row in rows], dtype=torch.long)
        self._row = torch.arange(len(rows)).repeat_interleave(self.lengths)
        starts = self.lengths.cumsum(0) - self.lengths
        self._column = torch.arange(len(self._row)) - starts[self._row]

    def concatenate(self, name: str, dtype: torch.dtype) -> Tensor:
        """Concatenate one attribute of all parts, in order."""
        return torch.cat([torch.empty(0, dtype=dtype), *(getattr(part, name) for part in self._parts)])

    def pad(self, values: Tensor, *, empty: int = 0) -> Tensor:
        """Pad values in the order of the parts to `[B, R]`, on the right."""
        width = max(1, int(self.lengths.max())) if len(self.lengths) else 1
        padded = torch.full((len(self.lengths), width), empty, dtype=values.dtype)
        padded[self._row, self._column] = values
        return padded


def left_pad(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Pad rows to `[B, P]` on the left; return ids and mask."""
    width = max(map(len, rows), default=1)
    padded = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, row in enumerate(rows):
        padded[number, width - len(row) :] = torch.tensor(row, dtype=torch.long)
        mask[number, width - len(row) :] = True
    return padded, mask
