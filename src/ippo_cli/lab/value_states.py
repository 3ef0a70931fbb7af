"""Keys of `algorithm.advantage=monte_carlo`, and the states of responses that continuations estimate the values of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from transformers import PreTrainedTokenizerBase

from ippo_cli.config.constraints import PositiveInt
from ippo_cli.rollout.branches import State
from ippo_cli.types import Episode


class ValueStates(str, Enum):
    turns = "turns"
    lines = "lines"
    tokens = "tokens"


@dataclass
class Keys:
    """Keys of Monte-Carlo values: mean returns of continuations that the policies sample from states of responses."""

    continuations: PositiveInt = 9  # sampled from each state, to the end of the episode
    states: ValueStates = ValueStates.lines
    # first token of each turn | and of each line (reasoning step) | and every n tokens
    every: PositiveInt | None = None  # states=tokens: number of tokens between states of a turn
    max_states: PositiveInt | None = None  # states per episode of an agent, the first ones; null = all

    def count_states(self, turns: int | None, turn_tokens: int) -> int | None:
        """The most states of an agent in an episode of `turns` turns, each of at most `turn_tokens` tokens; None if
        unknown.
        """
        by_turn: int | None = 1
        if self.states is ValueStates.lines:
            by_turn = None
        elif self.every is not None:
            by_turn = -(-turn_tokens // self.every)
        found = None if by_turn is None or turns is None else turns * by_turn
        if self.max_states is None:
            return found
        return self.max_states if found is None else min(found, self.max_states)


class ValueStateChooser:
    """Chooses the states of one agent before its first token, and before others as the keys say."""

    def __init__(self, settings: Keys, tokenizer: PreTrainedTokenizerBase) -> None:
        self._settings, self._tokenizer = settings, tokenizer
        self._texts: dict[int, str] = {}

    def choose(self, episodes: Sequence[Episode], rows: Sequence[int], agent: str) -> list[State]:
        """The states of these rows of `episodes`, in order; a row without a token of the agent has none."""
        chosen: list[State] = []
        for row in rows:
            own = [
                State(row, agent, number, position)
                for number, turn in enumerate(episodes[row].trainable_turns(agent))
                for position in self._positions(turn.completion.ids.tolist())
            ]
            chosen += _limit_states(own, self._settings.max_states)
        return chosen

    def _positions(self, ids: Sequence[int]) -> Iterator[int]:
        """Tokens of a turn before each of its states."""
        if ids:
            yield 0
        if self._settings.states is ValueStates.tokens:
            assert self._settings.every is not None
            yield from range(self._settings.every, len(ids), self._settings.every)
        elif self._settings.states is ValueStates.lines:
            yield from self._line_starts(ids)

    def _line_starts(self, ids: Sequence[int]) -> Iterator[int]:
        """Positions after each line break that ends a line with text.

        A state depends on earlier tokens only: with a rule that looks at the token after it, values would be baselines
        that depend on the action.
        """
        has_text = False
        for position, token in enumerate(ids[:-1], start=1):
            text = self._text(token)
            has_text = has_text or bool(text.strip())
            if has_text and "\n" in text:
                yield position
                has_text = bool(text.rpartition("\n")[2].strip())

    def _text(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = str(self._tokenizer.decode([token], skip_special_tokens=True))
        return self._texts[token]


def _limit_states(states: list[State], limit: int | None) -> list[State]:
    """The first `limit` of the states: a choice by their number would depend on later actions."""
    return states if limit is None else states[:limit]
