"""Inputs of a centralised critic: all observations and actions of an episode, up to each action of one agent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ippo_cli.rollout.rows import Columns, Part, left_pad, tokens_between
from ippo_cli.tasks.control_tokens import ControlTokens
from ippo_cli.types import CriticView, DetachedTurn, Episode, Rollout, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticLayout:
    """The format of a critic's rows."""

    agents: tuple[str, ...]  # in the task's order
    tokenizer: PreTrainedTokenizerBase  # the critic's
    reads_text: bool  # whether all input is text, with one value per turn; otherwise an agent's own tokens are kept
    is_last_only: bool  # rollout.context=last_only: an agent's prompt contains only its latest observation
    context: int  # context length of the critic in tokens
    max_new_tokens: Mapping[str, int]  # token limit of each agent per turn
    contexts: Mapping[str, int]  # context length of each agent in tokens

    @property
    def separator(self) -> int:
        """The token that ends other agents' observations and actions: one that every vocabulary has."""
        assert isinstance(self.tokenizer.eos_token_id, int)
        return self.tokenizer.eos_token_id


def build_central_view(
    episodes: Sequence[Episode], agent: str, agent_rollout: Rollout, layout: CriticLayout
) -> CriticView:
    """Build the critic's input of each episode for one agent, from the agent's own rows and the other agents' turns.

    Per step: the observations of the other agents, in the order of `agents`, the agent's observation and action, and
    then the actions of the other agents. So the state before an action includes every observation of its step and no
    other action of it. Each observation and action of other agents ends with the separator.

    A detached turn of the agent's rows is also a separate sequence here: after the other agents' observations and
    actions since the agent's last turn or, where the turn's prompt is the whole conversation, since the start. A turn
    that does not fit the remaining context also starts a new sequence: it contains as much of the history as fits,
    without the oldest parts of other agents, then without the oldest parts of the agent. Truncation never depends on
    later tokens.

    As text, an agent's own part is text as well; each turn has one action column, with the value of the state before
    the turn.
    """
    ids = _tokenize_texts(episodes, agent, layout)
    rows = [_build_row(episode, agent, layout, ids) for episode in episodes]
    columns = Columns([row.parts for row in rows])
    prompt_ids, prompt_mask = left_pad([row.prompt or [0] for row in rows])
    device = agent_rollout.response_ids.device
    turn = columns.pad(columns.turn, empty=-1).to(device)
    zeros = torch.zeros(turn.shape, device=device)
    rollout = Rollout(
        prompt_ids=prompt_ids.to(device),
        prompt_mask=prompt_mask.to(device),
        response_ids=columns.pad(columns.concatenate("ids", torch.long)).to(device),
        response_mask=turn >= 0,
        turn=turn,
        length=columns.lengths.to(device),
        logprobs=zeros,
        behavior_logprobs=zeros,
        finished=agent_rollout.finished,
        texts=agent_rollout.texts,
        detached=[row.detached for row in rows],
    )
    column, source = (_align_turns if layout.reads_text else _align_tokens)(agent_rollout, rollout)
    left_out = torch.tensor([row.is_truncated for row in rows], dtype=torch.bool, device=device)
    return CriticView(rollout=rollout, column=column, source=source, is_truncated=left_out)


def _align_tokens(own: Rollout, view: Rollout) -> tuple[Tensor, Tensor]:
    """Map columns of rows with the same action tokens in the same order."""
    own_tokens, view_tokens = own.response_mask.nonzero(), view.response_mask.nonzero()
    column, source = torch.zeros_like(own.response_ids), torch.zeros_like(view.response_ids)
    column[own_tokens[:, 0], own_tokens[:, 1]] = view_tokens[:, 1]
    source[view_tokens[:, 0], view_tokens[:, 1]] = own_tokens[:, 1]
    return column, source


def _align_turns(own: Rollout, view: Rollout) -> tuple[Tensor, Tensor]:
    """Map all tokens of a turn to the turn's column; that column learns the targets of the turn's last token."""
    column, source = torch.zeros_like(own.response_ids), torch.zeros_like(view.response_ids)
    for turn in range(int(own.turn.max()) + 1):
        own_mask, view_mask = own.turn == turn, view.turn == turn
        place = view_mask.long().argmax(dim=1, keepdim=True)
        last = (torch.arange(own_mask.shape[1], device=own_mask.device) * own_mask).amax(dim=1, keepdim=True)
        column = torch.where(own_mask, place, column)
        source = torch.where(view_mask, last, source)
    return column, source


def _tokenize_texts(episodes: Sequence[Episode], agent: str, layout: CriticLayout) -> Mapping[str, list[int]]:
    """The token ids of every text that the critic reads as text."""
    texts: dict[str, None] = {}
    for episode in episodes:
        texts |= dict.fromkeys(episode.last_observations.values())
        for turn in episode.turns:
            if layout.reads_text or turn.agent != agent:
                texts[turn.observation] = None
            if layout.reads_text:
                texts[turn.completion.text] = None
    texts.pop("", None)
    control = ControlTokens(layout.tokenizer)
    written = control.token_ids([control.guard(text) for text in texts])
    return {"": []} | dict(zip(texts, written, strict=True))


def _build_row(episode: Episode, agent: str, layout: CriticLayout, ids: Mapping[str, list[int]]) -> _ViewBuilder:
    row, others = _ViewBuilder(layout), [name for name in layout.agents if name != agent]
    end, own = [layout.separator], episode.trainable_turns(agent)
    before: Turn | None = None
    if not own:
        return row
    for turns in _group_by_step(episode.turns):
        for name in others:
            if name in turns:
                row.add_other_tokens([*ids[turns[name].observation], *end])
        if agent in turns:
            turn = turns[agent]
            if layout.reads_text:
                row.add_observation([*ids[turn.observation], *end], starts_sequence=layout.is_last_only)
                row.add_text_completion([*ids[turn.completion.text], *end], len(turn.completion.ids) > 0)
            else:
                between = None if before is None else tokens_between(before, turn.prompt)
                row.add_observation(turn.prompt if between is None else between, starts_sequence=between is None)
                row.add_completion(turn)
            before = turn
        if before is own[-1] and episode.finished(agent):
            break  # no value is needed after the agent's part has ended
        for name in others:
            if name in turns:
                completion = turns[name].completion
                tokens = ids[completion.text] if layout.reads_text else completion.ids.tolist()
                row.add_other_tokens(tokens if tokens[-1:] == end else [*tokens, *end])
    else:
        _add_final_observations(row, episode, agent, others, layout, ids)
    row.finish()
    return row


def _add_final_observations(
    row: _ViewBuilder,
    episode: Episode,
    agent: str,
    others: Sequence[str],
    layout: CriticLayout,
    ids: Mapping[str, list[int]],
) -> None:
    """Add the final observations of an episode in which the agent was truncated."""
    observations = episode.last_observations
    for name in others:
        if name in observations:
            row.add_other_tokens([*ids[observations[name]], layout.separator])
    if agent in episode.final and layout.reads_text:
        row.add_observation([*ids[observations[agent]], layout.separator], starts_sequence=layout.is_last_only)
    elif agent in episode.final:
        between = tokens_between(episode.turns_of_agent(agent)[-1], episode.final[agent])
        row.add_observation(episode.final[agent] if between is None else between, starts_sequence=between is None)


def _group_by_step(turns: Iterable[Turn]) -> Iterator[dict[str, Turn]]:
    """Turns by agent, of each step."""
    for _, step in groupby(turns, key=lambda turn: turn.step):
        yield {turn.agent: turn for turn in step}


@dataclass(slots=True)
class _Piece:
    """Tokens that a new sequence may include or drop."""

    ids: list[int]
    is_own: bool


class _ViewBuilder:
    """Builds one row step by step from an episode."""

    def __init__(self, layout: CriticLayout) -> None:
        self.prompt: list[int] = []
        self.parts: list[Part] = []
        self.detached: list[DetachedTurn] = []
        self.is_truncated = False
        self._layout = layout
        self._head: list[int] = _bos_ids(layout) if layout.reads_text else []
        self._pieces: list[_Piece] = []  # the content of a sequence that would start now
        self._unread: list[_Piece] = []  # the last of them, not yet in a column
        self._starts_sequence = False  # whether the next turn starts a separate sequence
        self._turns = 0
        self._sequence = 0  # number of tokens in the sequence of the last column
        self._columns = 0

    def add_other_tokens(self, ids: list[int]) -> None:
        """Add an observation or action of another agent, with its separator."""
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.is_own and last.ids[-1:] != [self._layout.separator]:
            self._add(_Piece([self._layout.separator], is_own=True))  # after a truncated response
        self._add(_Piece(ids, is_own=False))

    def add_observation(self, ids: Sequence[int], *, starts_sequence: bool) -> None:
        """Add the agent's observation; `starts_sequence`: start a new sequence containing only this observation."""
        ids = list(ids)
        if starts_sequence:
            if not self._layout.reads_text:
                begins = int(ids[0] == self._layout.tokenizer.bos_token_id)  # the BOS token remains first
                self._head, ids = ids[:begins], ids[begins:]
            candidates = self._unread if self._layout.is_last_only else self._pieces
            self._pieces = [piece for piece in candidates if not piece.is_own]
            self._unread = list(self._pieces)
        self._starts_sequence = starts_sequence
        self._add(_Piece(ids, is_own=True))

    def add_completion(self, turn: Turn) -> None:
        """Add the agent's action, token by token."""
        ids, layout = turn.completion.ids.tolist(), self._layout
        # Reserve the token limit, not the actual length: the truncation before an action must not reveal its length.
        self._place_unread(min(layout.max_new_tokens[turn.agent], layout.contexts[turn.agent] - len(turn.prompt)))
        self._append(Part.without_logprobs(ids, self._turns))
        self._pieces.append(_Piece(ids, is_own=True))
        self._turns += 1

    def add_text_completion(self, ids: list[int], has_value: bool) -> None:
        """Add the agent's action as text: one action column, for the state before the turn."""
        self._place_unread(1)
        self._append(Part.without_logprobs(ids[:1], self._turns if has_value else -1))
        self._append(Part.without_logprobs(ids[1:]))
        self._pieces.append(_Piece(ids, is_own=True))
        self._turns += 1

    def finish(self) -> None:
        """Finish the row: unread tokens form the last state."""
        self._place_unread(0)

    def _add(self, piece: _Piece) -> None:
        self._pieces.append(piece)
        self._unread.append(piece)

    def _place_unread(self, room: int) -> None:
        """Place the unread tokens before the next column, in a sequence with room for `room` more tokens."""
        unread = [token for piece in self._unread for token in piece.ids]
        begins = not self.prompt
        if begins or self._starts_sequence or self._sequence + len(unread) + room > self._layout.context:
            prompt = self._truncate_pieces(room)
            if begins:
                self.prompt = prompt
            else:
                self.detached.append(DetachedTurn(column=self._columns, prompt=prompt))
            self._sequence = len(prompt)
        elif unread:
            self._append(Part.without_logprobs(unread))
        self._unread, self._starts_sequence = [], False

    def _append(self, part: Part) -> None:
        self.parts.append(part)
        self._columns += len(part.ids)
        self._sequence += len(part.ids)

    def _truncate_pieces(self, room: int) -> list[int]:
        """Truncate the pieces to leave `room` tokens: oldest of other agents first, then the agent's oldest tokens."""
        space = max(self._layout.context - room - len(self._head), 1)
        excess = sum(len(piece.ids) for piece in self._pieces) - space
        kept: list[int] = []
        for piece in self._pieces:
            if excess > 0 and not piece.is_own:
                excess -= len(piece.ids)
                self.is_truncated = True
            else:
                kept += piece.ids
        self.is_truncated |= excess > 0
        return self._head + kept[max(excess, 0) :]


def _bos_ids(layout: CriticLayout) -> list[int]:
    """The BOS token of the critic's tokenizer, if it has one."""
    ids = layout.tokenizer("").input_ids
    return list(ids) if list(ids) == [layout.tokenizer.bos_token_id] else []
