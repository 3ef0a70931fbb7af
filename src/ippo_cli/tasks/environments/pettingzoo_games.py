"""Action names and observation formats of known PettingZoo games."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ippo_cli.tasks.environments.spaces import ActionTexts

RPS_NAMES = ("rock", "paper", "scissors", "spock", "lizard")


@dataclass(frozen=True, slots=True)
class GameText:
    """Action names and observation formats of a known game."""

    actions: Callable[[int], Sequence[str]]  # number of actions -> names; empty if actions are numbered
    short: Callable[[Any, ActionTexts], str]
    words: Callable[[Any, ActionTexts], str]


def _board_rows(observation: Any) -> list[list[str]]:
    """Rows of a board: `x` own, `o` opponent's, `.` free."""
    own, other = observation["observation"][..., 0].tolist(), observation["observation"][..., 1].tolist()
    return [
        ["x" if x else "o" if o else "." for x, o in zip(*row, strict=True)] for row in zip(own, other, strict=True)
    ]


def _squares(observation: Any, texts: ActionTexts) -> str:
    """The nine squares in the order of their numbers."""
    return "".join(mark for row in _board_rows(observation) for mark in row)


def _squares_words(observation: Any, texts: ActionTexts) -> str:
    rows = "\n".join("".join(row) for row in _board_rows(observation))
    return f"Squares 0 1 2 / 3 4 5 / 6 7 8; x is yours, o the other's, . free:\n{rows}\n"


def _stacks(observation: Any, texts: ActionTexts) -> str:
    """The columns' pieces from the bottom upwards, with `/` between columns: `/x/xo////`."""
    columns = zip(*reversed(_board_rows(observation)), strict=True)
    return "/".join("".join(column).rstrip(".") for column in columns)


def _stacks_words(observation: Any, texts: ActionTexts) -> str:
    rows = "\n".join("".join(row) for row in _board_rows(observation))
    return f"Columns 0123456; x is yours, o the other's, . free:\n{rows}\n"


def _last_move(observation: Any, texts: ActionTexts) -> str:
    """The opponent's last move; `-` before the first one."""
    move = int(observation)
    return texts.write(move) if move in texts.actions else "-"


def _last_move_words(observation: Any, texts: ActionTexts) -> str:
    move = int(observation)
    begun = f"The other one's last move: {texts.describe([move])}." if move in texts.actions else "The first move."
    return f"{begun} Actions: {texts.describe()}."


def _rps_names(count: int) -> tuple[str, ...]:
    return (*RPS_NAMES, *(f"action_{number + 1}" for number in range(len(RPS_NAMES), count)))[:count]


KNOWN_GAMES = {
    "tictactoe": GameText(lambda count: (), _squares, _squares_words),
    "connect_four": GameText(lambda count: (), _stacks, _stacks_words),
    "rps": GameText(_rps_names, _last_move, _last_move_words),
}
