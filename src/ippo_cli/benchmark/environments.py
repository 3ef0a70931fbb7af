"""Environments of the benchmark for two agents: small enough for exact bounds and for training in seconds.

Each function is an environment of `task=benchmark_pair`, or, if its name ends with `alone`, of `task=benchmark_solo`.
The module needs only the standard library, so that other trainers can use it without this program's packages.

Both agents act at once. An invalid action is replaced by a random one, and its turn gets the minimum reward. Without
this penalty, policies drift away from valid actions.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import product
from statistics import fmean
from typing import Any

from ippo_cli.benchmark.turn_games import AGENTS, LETTERS, Caller, Kuhn, UnequalRoles, letter_after

SIGNS = "abcd"  # both agents should choose the same one
CELLS = 5  # of the ring in `Meet`
MOVES = {"l": -1, "s": 0, "r": 1}
Payoffs = Mapping[str, tuple[float, float]]  # both actions, the first agent's first -> rewards of both
STAG_HUNT: Payoffs = {"ss": (1.0, 1.0), "sh": (0.0, 0.75), "hs": (0.75, 0.0), "hh": (0.5, 0.5)}
DILEMMA: Payoffs = {"cc": (0.6, 0.6), "cd": (0.0, 1.0), "dc": (1.0, 0.0), "dd": (0.2, 0.2)}
CONVENTION: Payoffs = {
    f"{one}{other}": (float(one == other), float(one == other)) for one, other in product(SIGNS, SIGNS)
}
# Rock, paper, scissors; a win of paper counts three times, so uniform play is not optimal.
DUEL: Payoffs = {
    f"{one}{other}": (float(won), float(-won))
    for (one, other), won in {
        ("r", "r"): 0, ("r", "p"): -3, ("r", "s"): 1,
        ("p", "r"): 3, ("p", "p"): 0, ("p", "s"): -1,
        ("s", "r"): -1, ("s", "p"): 1, ("s", "s"): 0,
    }.items()
}  # fmt: skip


class Simultaneous(ABC):
    """Both agents act simultaneously for `turns` turns. Rewards come each turn, or with `at_end` after the last one."""

    def __init__(self, turns: int, at_end: bool = False) -> None:
        self.turns, self.at_end = turns, at_end

    def reset(self, seed: int) -> tuple[dict[str, str], dict[str, float]]:
        self.luck = random.Random(seed)
        self.turn = 0
        self.owed = dict.fromkeys(AGENTS, 0.0)
        self.begin()
        return self.observations(), {}

    def step(self, actions: Mapping[str, str]) -> tuple[dict[str, str], dict[str, float], bool, bool, dict[str, float]]:
        legal = self.actions()
        texts = {name: actions[name].strip() for name in AGENTS}
        illegal = {name for name in AGENTS if texts[name] not in legal[name]}
        named = {name: self.luck.choice(legal[name]) if name in illegal else texts[name] for name in AGENTS}
        earned = self.play(named["first"], named["second"], illegal)
        self.owed = {name: self.owed[name] + part for name, part in zip(AGENTS, earned, strict=True)}
        self.turn += 1
        over = self.turn == self.turns
        paid = dict.fromkeys(AGENTS, 0.0)
        if over or not self.at_end:
            paid, self.owed = self.owed, paid
        return self.observations(), paid, over, False, self.parts(named["first"], named["second"])

    def parts(self, first: str, second: str) -> dict[str, float]:
        """Return metrics of the last turn."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Nothing to release."""

    @abstractmethod
    def begin(self) -> None:
        """Set the state before the first turn."""

    @abstractmethod
    def observations(self) -> dict[str, str]:
        """Return the current observation of each agent."""

    @abstractmethod
    def actions(self) -> Mapping[str, Sequence[str]]:
        """Return the valid actions of each agent."""

    @abstractmethod
    def play(self, first: str, second: str, illegal: Set[str]) -> tuple[float, float]:
        """Apply both actions and return both rewards: the minimum reward if an answer was invalid."""


class Copy(Simultaneous):
    """Each turn both observe the same two letters: one agent writes them, the other writes the letter after each.

    Both get the fraction of correct letters of all four as their reward; with `together` the reward is 0 unless all are
    correct. With `signs` each agent also observes its own plus or minus. Each sign adds or subtracts half of a turn's
    maximum reward for both agents, whatever they answer: half of this random bonus is known only to the other agent.
    """

    def __init__(
        self, turns: int = 1, at_end: bool = False, together: bool = False, length: int = 2, signs: bool = False
    ) -> None:
        super().__init__(turns, at_end)
        self.together, self.length, self.with_signs = together, length, signs
        self.words = ["".join(letters) for letters in product(LETTERS, repeat=length)]

    def begin(self) -> None:
        self.learnt = 0.0
        self.draw()

    def draw(self) -> None:
        """Draw the letters and signs of a turn."""
        self.word = self.luck.choice(self.words)
        self.signs = dict.fromkeys(AGENTS, "")
        if self.with_signs:
            self.signs = {name: self.luck.choice("+-") for name in AGENTS}

    def observations(self) -> dict[str, str]:
        return {name: self.word + self.signs[name] for name in AGENTS}

    def actions(self) -> Mapping[str, Sequence[str]]:
        return dict.fromkeys(AGENTS, self.words)

    def play(self, first: str, second: str, illegal: Set[str]) -> tuple[float, float]:
        following = "".join(map(letter_after, self.word))
        right = [one == other for one, other in zip(first + second, self.word + following, strict=True)]
        share = float(all(right)) if self.together else sum(right) / len(right)
        share = 0.0 if illegal else share
        self.learnt += share / self.turns
        earned = (share + self.bonus()) / self.turns
        self.draw()
        return earned, earned

    def bonus(self) -> float:
        """Return the bonus of this turn's signs, as a fraction of the turn's maximum reward."""
        return sum({"+": 0.5, "-": -0.5, "": 0.0}[sign] for sign in self.signs.values())

    def parts(self, first: str, second: str) -> dict[str, float]:
        """Return the reward of the answers so far, without the bonus of signs."""
        return {"learnt": self.learnt}


class Meet(Simultaneous):
    """Two agents move on a ring; a turn gives both `1 / turns` if they are in the same cell after it.

    With `at_end` only the last turn counts, for 1. Each agent observes the turn, its own cell and the other's cell.
    """

    def begin(self) -> None:
        self.cells = [self.luck.randrange(CELLS) for _ in AGENTS]

    def observations(self) -> dict[str, str]:
        one, other = self.cells
        return {"first": f"{self.turn}{one}{other}", "second": f"{self.turn}{other}{one}"}

    def actions(self) -> Mapping[str, Sequence[str]]:
        return {name: [*MOVES] for name in AGENTS}

    def play(self, first: str, second: str, illegal: Set[str]) -> tuple[float, float]:
        self.cells = list(move_cells(tuple(self.cells), first, second))
        earned = 0.0 if illegal else meeting(self.cells, self.turn, self.turns, self.at_end)
        return earned, earned


def move_cells(cells: Sequence[int], first: str, second: str) -> tuple[int, int]:
    """Return both cells after these moves."""
    one, other = cells
    return (one + MOVES[first]) % CELLS, (other + MOVES[second]) % CELLS


def meeting(cells: Sequence[int], turn: int, turns: int, at_end: bool) -> float:
    """Return the reward of these cells after a turn; turns count from 0."""
    worth = float(turn == turns - 1) if at_end else 1 / turns
    return worth * (cells[0] == cells[1])


class Matrix(Simultaneous):
    """A repeated normal-form game; each agent observes its own last action and the other's (`-` at first)."""

    def __init__(self, payoffs: Payoffs, turns: int) -> None:
        super().__init__(turns)
        self.payoffs = payoffs
        self.options = [list(dict.fromkeys(pair[seat] for pair in payoffs)) for seat in range(len(AGENTS))]

    def begin(self) -> None:
        self.last = "--"

    def observations(self) -> dict[str, str]:
        return {"first": self.last, "second": self.last[::-1]}

    def actions(self) -> Mapping[str, Sequence[str]]:
        return dict(zip(AGENTS, self.options, strict=True))

    def play(self, first: str, second: str, illegal: Set[str]) -> tuple[float, float]:
        self.last = first + second
        if illegal:
            return self.forfeit_rewards(illegal)
        return tuple(part / self.turns for part in self.payoffs[self.last])  # type: ignore[return-value]

    def forfeit_rewards(self, illegal: Set[str]) -> tuple[float, float]:
        """Return both rewards of a turn in which these agents answered with invalid actions."""
        worst = min(min(pair) for pair in self.payoffs.values())
        if all(sum(pair) == 0 for pair in self.payoffs.values()):  # zero sum: the other agent wins the penalty
            lost = [float(name in illegal) for name in AGENTS]
            return worst * (lost[0] - lost[1]) / self.turns, worst * (lost[1] - lost[0]) / self.turns
        return worst / self.turns, worst / self.turns

    def parts(self, first: str, second: str) -> dict[str, float]:
        """Return 1 for each action of the last turn, 0 for other actions."""
        played = dict(zip(AGENTS, (first, second), strict=True))
        return {
            f"{name}_{option}": float(played[name] == option)
            for name, options in zip(AGENTS, self.options, strict=True)
            for option in options
        }

    def chance_outcomes(self) -> dict[int, float]:
        """Return one seed: payoffs depend on the actions only."""
        return {0: 1.0}


class Alone:
    """One agent, `solo`, that does the work of both agents of another environment.

    It observes what the agents that act observe: once if it is equal, or else one text after the other. Its answer is
    their actions, one after the other. Its reward is the mean of theirs.
    """

    def __init__(self, game: Any) -> None:
        self.game = game

    def reset(self, seed: int) -> tuple[dict[str, str], dict[str, float]]:
        observations, _ = self.game.reset(seed)
        return self.join(observations), {}

    def step(self, actions: Mapping[str, str]) -> tuple[dict[str, str], dict[str, float], bool, bool, dict[str, float]]:
        text, legal = actions["solo"].strip(), self.game.actions()
        *earlier, last = self.acting
        answers: dict[str, str] = {}
        for name in earlier:
            length = len(legal[name][0])  # equal for all actions
            answers[name], text = text[:length], text[length:]
        observations, rewards, is_over, is_cut, parts = self.game.step({**answers, last: text})
        return self.join(observations), {"solo": fmean(rewards.values())}, is_over, is_cut, parts

    def join(self, observations: Mapping[str, str]) -> dict[str, str]:
        """Return the agent's observation, and note which agents act; empty without observations."""
        self.acting = list(observations)
        return {"solo": "".join(dict.fromkeys(observations.values()))} if observations else {}

    def actions(self) -> Mapping[str, Sequence[str]]:
        legal = self.game.actions()
        return {"solo": ["".join(parts) for parts in product(*(legal[name] for name in self.acting))]}

    def close(self) -> None:
        """Nothing to release."""


def copy(**arguments: Any) -> Copy:
    return Copy(**arguments)


def copy_alone(length: int = 2) -> Alone:
    return Alone(Copy(length=length))


def meet(**arguments: Any) -> Meet:
    return Meet(**arguments)


def stag_hunt(turns: int) -> Matrix:
    return Matrix(STAG_HUNT, turns)


def dilemma(turns: int) -> Matrix:
    return Matrix(DILEMMA, turns)


def convention(turns: int) -> Matrix:
    return Matrix(CONVENTION, turns)


def duel(turns: int) -> Matrix:
    return Matrix(DUEL, turns)


def unequal_roles(turns: int = 1) -> UnequalRoles:
    return UnequalRoles(turns)


def kuhn() -> Kuhn:
    return Kuhn()


def caller(cost: float = 0.2) -> Caller:
    return Caller(cost)


GAMES: Mapping[str, Callable[..., Any]] = {
    "copy": copy,
    "meet": meet,
    "stag_hunt": stag_hunt,
    "dilemma": dilemma,
    "convention": convention,
    "caller": caller,
}


def alone(game: str, **arguments: Any) -> Alone:
    return Alone(GAMES[game](**arguments))
