"""What a centralised critic reads: all that was told and written in an episode, up to each action of one agent."""

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
    """How a critic's rows are written."""

    agents: tuple[str, ...]  # in the task's order
    tokenizer: PreTrainedTokenizerBase  # the critic's
    reads_text: bool  # whether all is read as text: one value for a turn; else an agent's own tokens stay as they are
    is_last_only: bool  # rollout.history=latest: an agent's turns read nothing of its earlier ones
    context: int  # tokens that the critic reads as one sequence
    max_new_tokens: Mapping[str, int]  # that each agent may write in a turn
    contexts: Mapping[str, int]  # tokens that each agent may read and write as one sequence

    @property
    def separator(self) -> int:
        """Ends what others were told or wrote: a token that every vocabulary has."""
        assert isinstance(self.tokenizer.eos_token_id, int)
        return self.tokenizer.eos_token_id


def build_central_view(
    episodes: Sequence[Episode], agent: str, agent_rollout: Rollout, layout: CriticLayout
) -> CriticView:
    """What the critic reads of each episode for one agent, whose own rows are `own`.

    Step by step: what the others were told, in the order of `agents`, what the agent was told and wrote, and then what
    the others wrote. So the state before an action has every observation of its step and no other action of it. What
    others were told and wrote ends in the separator each.

    A turn that is read as a sequence of its own in the agent's rows is one here as well: behind what others were told
    and wrote since the agent's last turn, or, where the turn's prompt is the whole conversation, so far. So is a turn
    for which the sequence before it has no room left: it begins with what there is room for, of all so far, and what is
    left out are the oldest parts of others, then the oldest of the agent's own. Whether there is room depends on
    nothing that comes later.

    By text, an agent's own part is text as well; it has one action column for each turn: its value is that of the
    state before the turn.
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
        response_ids=columns.pad(columns.of("ids", torch.long)).to(device),
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
    left_out = torch.tensor([row.left_out for row in rows], dtype=torch.bool, device=device)
    return CriticView(rollout=rollout, column=column, source=source, left_out=left_out)


def _align_tokens(own: Rollout, view: Rollout) -> tuple[Tensor, Tensor]:
    """Both have the same action tokens in the same order."""
    own_tokens, view_tokens = own.response_mask.nonzero(), view.response_mask.nonzero()
    column, source = torch.zeros_like(own.response_ids), torch.zeros_like(view.response_ids)
    column[own_tokens[:, 0], own_tokens[:, 1]] = view_tokens[:, 1]
    source[view_tokens[:, 0], view_tokens[:, 1]] = own_tokens[:, 1]
    return column, source


def _align_turns(own: Rollout, view: Rollout) -> tuple[Tensor, Tensor]:
    """All tokens of a turn have the value of its column, which learns the targets of the turn's last token."""
    column, source = torch.zeros_like(own.response_ids), torch.zeros_like(view.response_ids)
    for turn in range(int(own.turn.max()) + 1):
        own_mask, view_mask = own.turn == turn, view.turn == turn
        place = view_mask.long().argmax(dim=1, keepdim=True)
        last = (torch.arange(own_mask.shape[1], device=own_mask.device) * own_mask).amax(dim=1, keepdim=True)
        column = torch.where(own_mask, place, column)
        source = torch.where(view_mask, last, source)
    return column, source


def _tokenize_texts(episodes: Sequence[Episode], agent: str, layout: CriticLayout) -> Mapping[str, list[int]]:
    """The ids of every text that is read as text."""
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


def _build_row(episode: Episode, agent: str, layout: CriticLayout, ids: Mapping[str, list[int]]) -> _RowBuilder:
    row, others = _RowBuilder(layout), [name for name in layout.agents if name != agent]
    end, own = [layout.separator], episode.own(agent)
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
                row.read([*ids[turn.observation], *end], starts_sequence=layout.is_last_only)
                row.write_text([*ids[turn.completion.text], *end], len(turn.completion.ids) > 0)
            else:
                between = None if before is None else tokens_between(before, turn.prompt)
                row.read(turn.prompt if between is None else between, starts_sequence=between is None)
                row.write(turn)
            before = turn
        if before is own[-1] and episode.finished(agent):
            break  # nobody asks what its part would still be worth
        for name in others:
            if name in turns:
                completion = turns[name].completion
                said = ids[completion.text] if layout.reads_text else completion.ids.tolist()
                row.add_other_tokens(said if said[-1:] == end else [*said, *end])
    else:
        _add_final_observations(row, episode, agent, others, layout, ids)
    row.close()
    return row


def _add_final_observations(
    row: _RowBuilder,
    episode: Episode,
    agent: str,
    others: Sequence[str],
    layout: CriticLayout,
    ids: Mapping[str, list[int]],
) -> None:
    """What agents were told at the end of an episode in which the agent's part was cut."""
    observations = episode.last_observations
    for name in others:
        if name in observations:
            row.add_other_tokens([*ids[observations[name]], layout.separator])
    if agent in episode.final and layout.reads_text:
        row.read([*ids[observations[agent]], layout.separator], starts_sequence=layout.is_last_only)
    elif agent in episode.final:
        between = tokens_between(episode.of(agent)[-1], episode.final[agent])
        row.read(episode.final[agent] if between is None else between, starts_sequence=between is None)


def _group_by_step(turns: Iterable[Turn]) -> Iterator[dict[str, Turn]]:
    """Turns by agent, of each step."""
    for _, step in groupby(turns, key=lambda turn: turn.step):
        yield {turn.agent: turn for turn in step}


@dataclass(slots=True)
class _Piece:
    """Tokens that a new sequence may have or leave out."""

    ids: list[int]
    own: bool


class _RowBuilder:
    """One row, which grows as the episode did."""

    def __init__(self, layout: CriticLayout) -> None:
        self.prompt: list[int] = []
        self.parts: list[Part] = []
        self.detached: list[DetachedTurn] = []
        self.left_out = False
        self._layout = layout
        self._head: list[int] = _bos_ids(layout) if layout.reads_text else []
        self._pieces: list[_Piece] = []  # what a sequence that begins now would have
        self._unread: list[_Piece] = []  # the last of them, which are in no column yet
        self._starts_sequence = False  # whether the next turn is a sequence of its own
        self._turns = 0
        self._sequence = 0  # tokens of the sequence that the last column is in
        self._columns = 0

    def add_other_tokens(self, ids: list[int]) -> None:
        """What another agent was told or wrote, its separator included."""
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.own and last.ids[-1:] != [self._layout.separator]:
            self._add(_Piece([self._layout.separator], own=True))  # behind a response that was cut
        self._add(_Piece(ids, own=False))

    def read(self, ids: Sequence[int], *, starts_sequence: bool) -> None:
        """What the agent was told; `anew`: all that it reads, and nothing of its own stands before it."""
        ids = list(ids)
        if starts_sequence:
            if not self._layout.reads_text:
                begins = int(ids[0] == self._layout.tokenizer.bos_token_id)  # a token that stays the first
                self._head, ids = ids[:begins], ids[begins:]
            heard = self._unread if self._layout.is_last_only else self._pieces
            self._pieces = [piece for piece in heard if not piece.own]
            self._unread = list(self._pieces)
        self._starts_sequence = starts_sequence
        self._add(_Piece(ids, own=True))

    def write(self, turn: Turn) -> None:
        """What the agent wrote, token by token."""
        ids, layout = turn.completion.ids.tolist(), self._layout
        # As much as it might have written, so that what is read before it does not tell how much it did write.
        self._place(min(layout.max_new_tokens[turn.agent], layout.contexts[turn.agent] - len(turn.prompt)))
        self._write(Part.of(ids, self._turns))
        self._pieces.append(_Piece(ids, own=True))
        self._turns += 1

    def write_text(self, ids: list[int], has_value: bool) -> None:
        """What the agent wrote, as text: one action column, before which the turn's state is read."""
        self._place(1)
        self._write(Part.of(ids[:1], self._turns if has_value else -1))
        self._write(Part.of(ids[1:]))
        self._pieces.append(_Piece(ids, own=True))
        self._turns += 1

    def close(self) -> None:
        """Nothing is written any more: what is still unread is the last state."""
        self._place(0)

    def _add(self, piece: _Piece) -> None:
        self._pieces.append(piece)
        self._unread.append(piece)

    def _place(self, room: int) -> None:
        """Put what is unread before the next column, in a sequence that has room for so many tokens more."""
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
            self._write(Part.of(unread))
        self._unread, self._starts_sequence = [], False

    def _write(self, part: Part) -> None:
        self.parts.append(part)
        self._columns += len(part.ids)
        self._sequence += len(part.ids)

    def _truncate_pieces(self, room: int) -> list[int]:
        """All pieces that leave so much room, others' oldest left out first; of an agent's own the last tokens."""
        space = max(self._layout.context - room - len(self._head), 1)
        excess = sum(len(piece.ids) for piece in self._pieces) - space
        kept: list[int] = []
        for piece in self._pieces:
            if excess > 0 and not piece.own:
                excess -= len(piece.ids)
                self.left_out = True
            else:
                kept += piece.ids
        self.left_out |= excess > 0
        return self._head + kept[max(excess, 0) :]


def _bos_ids(layout: CriticLayout) -> list[int]:
    """The token that the critic's tokenizer begins every text with, if it has one."""
    ids = layout.tokenizer("").input_ids
    return list(ids) if list(ids) == [layout.tokenizer.bos_token_id] else []
