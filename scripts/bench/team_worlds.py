"""Worlds of two agents for the benchmark of teams: small enough to be solved exactly, learnt in seconds.

Each is an environment of `task=environment` (see pair.yaml). An answer that is no action stands for one that is drawn
at random, and earns the least there is in its turn: were it free, nothing would keep policies at actions at all, and
they drift away from them. On a board it is a random legal move and nothing else.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from itertools import product
from typing import Any

from ippo_cli.config.schema import AgentConfig, IllegalMove, ObservationForm, Opponent, PettingzooConfig
from ippo_cli.tasks.environment import Action
from ippo_cli.tasks.environments.build import make_environment_factory

AGENTS = ("first", "second")
LETTERS = "abc"  # that are copied
SIGNS = "abcd"  # of which both are to choose the same
CELLS = 5  # of the ring on which agents meet
MOVES = {"l": -1, "s": 0, "r": 1}
Payoffs = Mapping[str, tuple[float, float]]  # both actions, the first agent's first -> what each is paid
STAG_HUNT: Payoffs = {"ss": (1.0, 1.0), "sh": (0.0, 0.75), "hs": (0.75, 0.0), "hh": (0.5, 0.5)}
DILEMMA: Payoffs = {"cc": (0.6, 0.6), "cd": (0.0, 1.0), "dc": (1.0, 0.0), "dd": (0.2, 0.2)}
CONVENTION: Payoffs = {f"{one}{other}": (float(one == other),) * 2 for one, other in product(SIGNS, SIGNS)}
# Rock, paper, scissors in which paper's win counts three times: to play each a third of the time is a mistake.
DUEL: Payoffs = {
    f"{one}{other}": (float(won), float(-won))
    for (one, other), won in {
        ("r", "r"): 0, ("r", "p"): -3, ("r", "s"): 1,
        ("p", "r"): 3, ("p", "p"): 0, ("p", "s"): -1,
        ("s", "r"): -1, ("s", "p"): 1, ("s", "s"): 0,
    }.items()
}  # fmt: skip


class Simultaneous(ABC):
    """Both agents are asked at once, `turns` times. What a turn earns is paid then, or with `at_end` after the last."""

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
        """Numbers for the log, of the last turn."""
        return {}

    def close(self) -> None:  # noqa: B027
        """There is nothing to give back."""

    @abstractmethod
    def begin(self) -> None:
        """The state before the first turn."""

    @abstractmethod
    def observations(self) -> dict[str, str]:
        """What each agent is told now."""

    @abstractmethod
    def actions(self) -> Mapping[str, Sequence[str]]:
        """What each agent may answer."""

    @abstractmethod
    def play(self, first: str, second: str, illegal: Set[str]) -> tuple[float, float]:
        """Both agents' actions are taken; what each earns, which is the least there is if one's answer was illegal."""


class Copy(Simultaneous):
    """In every turn both are told the same two letters: one writes them, the other the ones that follow each.

    A turn earns both agents the share of all four letters that are right; with `together` nothing unless all are.
    With `signs` each agent is told a plus or a minus of its own besides, and each of them adds a half of a turn's worth
    to what both are paid, or takes it away, whatever they answer: half of what moves an agent's pay is known to the
    other one alone.
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
        """What a turn begins with."""
        self.word = self.luck.choice(self.words)
        self.signs = dict.fromkeys(AGENTS, "")
        if self.with_signs:
            self.signs = {name: self.luck.choice("+-") for name in AGENTS}

    def observations(self) -> dict[str, str]:
        return {name: self.word + self.signs[name] for name in AGENTS}

    def actions(self) -> Mapping[str, Sequence[str]]:
        return dict.fromkeys(AGENTS, self.words)

    def play(self, first: str, second: str, illegal: Set[str]) -> tuple[float, float]:
        following = "".join(LETTERS[(LETTERS.index(letter) + 1) % len(LETTERS)] for letter in self.word)
        right = [one == other for one, other in zip(first + second, self.word + following, strict=True)]
        share = float(all(right)) if self.together else sum(right) / len(right)
        share = 0.0 if illegal else share
        self.learnt += share / self.turns
        earned = (share + self.bonus()) / self.turns
        self.draw()
        return earned, earned

    def bonus(self) -> float:
        """What the signs of this turn add, as a share of its worth."""
        return sum({"+": 0.5, "-": -0.5, "": 0.0}[sign] for sign in self.signs.values())

    def parts(self, first: str, second: str) -> dict[str, float]:
        """What was earned by answers so far, signs aside."""
        return {"learnt": self.learnt}


class Meet(Simultaneous):
    """Two walkers on a ring; a turn earns both its share of 1 where they stand on the same cell after it.

    With `at_end` the last turn alone counts, for 1. Each is told the turn, its own cell and the other's.
    """

    def begin(self) -> None:
        self.cells = [self.luck.randrange(CELLS) for _ in AGENTS]

    def observations(self) -> dict[str, str]:
        one, other = self.cells
        return {"first": f"{self.turn}{one}{other}", "second": f"{self.turn}{other}{one}"}

    def actions(self) -> Mapping[str, Sequence[str]]:
        return {name: [*MOVES] for name in AGENTS}

    def play(self, first: str, second: str, illegal: Set[str]) -> tuple[float, float]:
        self.cells = list(walked(tuple(self.cells), first, second))
        earned = 0.0 if illegal else meeting(self.cells, self.turn, self.turns, self.at_end)
        return earned, earned


def walked(cells: Sequence[int], first: str, second: str) -> tuple[int, int]:
    """Where both stand after these moves."""
    one, other = cells
    return (one + MOVES[first]) % CELLS, (other + MOVES[second]) % CELLS


def meeting(cells: Sequence[int], turn: int, turns: int, at_end: bool) -> float:
    """What it earns to stand on these cells after a turn, counted from 0."""
    worth = float(turn == turns - 1) if at_end else 1 / turns
    return worth * (cells[0] == cells[1])


class Matrix(Simultaneous):
    """A game in normal form, `turns` times; each agent is told its own last action and the other's (`-` at first)."""

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
            return self.forfeited(illegal)
        return tuple(part / self.turns for part in self.payoffs[self.last])  # type: ignore[return-value]

    def forfeited(self, illegal: Set[str]) -> tuple[float, float]:
        """What each earns in a turn in which these agents answered with no action."""
        worst = min(min(pair) for pair in self.payoffs.values())
        if all(sum(pair) == 0 for pair in self.payoffs.values()):  # zero sum: what one forfeits the other wins
            lost = [float(name in illegal) for name in AGENTS]
            return worst * (lost[0] - lost[1]) / self.turns, worst * (lost[1] - lost[0]) / self.turns
        return worst / self.turns, worst / self.turns

    def parts(self, first: str, second: str) -> dict[str, float]:
        """How often each action was taken in the last turn."""
        taken = dict(zip(AGENTS, (first, second), strict=True))
        return {
            f"{name}_{option}": float(taken[name] == option)
            for name, options in zip(AGENTS, self.options, strict=True)
            for option in options
        }


class Consultation:
    """A board game of PettingZoo against a random player: the two agents make their side's moves in turn.

    The first seat alternates. Both are paid what the side wins or loses.
    """

    def __init__(self, env_id: str) -> None:
        self.world = make_environment_factory(_one_side(env_id))()

    def reset(self, seed: int) -> tuple[dict[str, str], dict[str, float]]:
        self.luck = random.Random(seed)
        self.moves = 0
        return self._asked(self.world.reset({"seed": seed}, seed)["side"]), {}

    def step(self, actions: Mapping[str, str]) -> tuple[dict[str, str], dict[str, float], bool, bool, dict[str, float]]:
        (legal,) = self.world.actions().values()
        (text,) = actions.values()
        step = self.world.step({"side": Action(text.strip() if text.strip() in legal else self.luck.choice(legal))})
        self.moves += 1
        paid = dict.fromkeys(AGENTS, step.rewards["side"])
        return self._asked(step.observations["side"]), paid, step.terminated, step.truncated, {}

    def actions(self) -> Mapping[str, Sequence[str]]:
        (legal,) = self.world.actions().values()
        return {AGENTS[self.moves % len(AGENTS)]: legal}

    def close(self) -> None:
        self.world.close()

    def _asked(self, board: str) -> dict[str, str]:
        return {AGENTS[self.moves % len(AGENTS)]: board}


def _one_side(env_id: str) -> PettingzooConfig:
    return PettingzooConfig(
        kind="pettingzoo",
        agents={"side": AgentConfig(template="{observation}")},
        primary_metric="sampled/score",
        train_size=1,
        eval_size=1,
        num_workers=1,
        environment_args={},
        max_turns=None,
        env_id=env_id,
        observation=ObservationForm.short,
        invalid_reward=0.0,  # never paid: nothing but legal moves is handed on
        illegal_move=IllegalMove.retry,
        opponent=Opponent.random,
        seat="alternate",
    )


def copy(**arguments: Any) -> Copy:
    return Copy(**arguments)


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


def tictactoe() -> Consultation:
    return Consultation("classic/tictactoe_v3")


def connect_four() -> Consultation:
    return Consultation("classic/connect_four_v3")
