"""Environments of two agents for the team benchmark: small enough for an exact solution and for training in seconds.

Each is an environment of `task=environment` (see pair.yaml). An invalid action is replaced by a random one, and its
turn gets the minimum reward. Without this penalty, policies drift away from valid actions. On a board an invalid move
is replaced by a random legal move, without a penalty. In `Kuhn` and `Caller` an invalid action ends the episode with
the minimum reward.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from itertools import permutations, product
from typing import Any

import yaml

from ippo_cli.compose.load import config_dir
from ippo_cli.config.schema import (
    AgentConfig,
    CurriculumConfig,
    IllegalMove,
    ObservationForm,
    Opponent,
    PettingzooConfig,
)
from ippo_cli.tasks.environment import Action
from ippo_cli.tasks.environments.build import make_environment_factory

NO_CURRICULUM = CurriculumConfig(**yaml.safe_load((config_dir() / "base" / "curriculum.yaml").read_text()))
AGENTS = ("first", "second")
LETTERS = "abc"  # the letters to copy
SIGNS = "abcd"  # both agents should choose the same one
CELLS = 5  # of the ring in `Meet`
MOVES = {"l": -1, "s": 0, "r": 1}
CARDS = "JQK"
DEALS = ["".join(deal) for deal in permutations(CARDS, len(AGENTS))]
ASK = "?"  # the caller's question, and what it observes instead of a letter that it does not know
Payoffs = Mapping[str, tuple[float, float]]  # both actions, the first agent's first -> rewards of both
STAG_HUNT: Payoffs = {"ss": (1.0, 1.0), "sh": (0.0, 0.75), "hs": (0.75, 0.0), "hh": (0.5, 0.5)}
DILEMMA: Payoffs = {"cc": (0.6, 0.6), "cd": (0.0, 1.0), "dc": (1.0, 0.0), "dd": (0.2, 0.2)}
CONVENTION: Payoffs = {f"{one}{other}": (float(one == other),) * 2 for one, other in product(SIGNS, SIGNS)}
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
        following = "".join(LETTERS[(LETTERS.index(letter) + 1) % len(LETTERS)] for letter in self.word)
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


class CopyAlone:
    """One turn of `Copy` for a single agent, which writes the letters of both."""

    def __init__(self, length: int) -> None:
        self.game = Copy(length=length)

    def reset(self, seed: int) -> tuple[dict[str, str], dict[str, float]]:
        observations, _ = self.game.reset(seed)
        return {"solo": observations["first"]}, {}

    def step(self, actions: Mapping[str, str]) -> tuple[dict[str, str], dict[str, float], bool, bool, dict[str, float]]:
        text, length = actions["solo"].strip(), self.game.length
        answers = {"first": text[:length], "second": text[length:]}
        observations, rewards, is_over, is_cut, parts = self.game.step(answers)
        return {"solo": observations["first"]}, {"solo": rewards["first"]}, is_over, is_cut, parts

    def actions(self) -> Mapping[str, Sequence[str]]:
        return {"solo": [one + other for one, other in product(self.game.words, repeat=2)]}

    def close(self) -> None:
        """Nothing to release."""


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
        self.cells = list(walked(tuple(self.cells), first, second))
        earned = 0.0 if illegal else meeting(self.cells, self.turn, self.turns, self.at_end)
        return earned, earned


def walked(cells: Sequence[int], first: str, second: str) -> tuple[int, int]:
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
            return self.forfeited(illegal)
        return tuple(part / self.turns for part in self.payoffs[self.last])  # type: ignore[return-value]

    def forfeited(self, illegal: Set[str]) -> tuple[float, float]:
        """Return both rewards of a turn in which these agents answered with invalid actions."""
        worst = min(min(pair) for pair in self.payoffs.values())
        if all(sum(pair) == 0 for pair in self.payoffs.values()):  # zero sum: the other agent wins the penalty
            lost = [float(name in illegal) for name in AGENTS]
            return worst * (lost[0] - lost[1]) / self.turns, worst * (lost[1] - lost[0]) / self.turns
        return worst / self.turns, worst / self.turns

    def parts(self, first: str, second: str) -> dict[str, float]:
        """Return 1 for each action of the last turn, 0 for other actions."""
        taken = dict(zip(AGENTS, (first, second), strict=True))
        return {
            f"{name}_{option}": float(taken[name] == option)
            for name, options in zip(AGENTS, self.options, strict=True)
            for option in options
        }

    def chance_outcomes(self) -> dict[int, float]:
        """Return one seed: payoffs depend on the actions only."""
        return {0: 1.0}


class UnequalRoles:
    """The first agent acts in each of `turns` turns, the second in the last one: each for its own reward.

    In a turn each agent observes a different random letter. The first copies it, the second writes the letter after
    it. A right answer has a reward of 1, divided by the agent's turns.
    """

    def __init__(self, turns: int = 1) -> None:
        self.turns = turns

    def reset(self, seed: int) -> tuple[dict[str, str], dict[str, float]]:
        self.luck, self.turn = random.Random(seed), 0
        return self.draw(), {}

    def draw(self) -> dict[str, str]:
        """Draw and return the observations of the agents that act in the current turn."""
        acting = AGENTS if self.turn == self.turns - 1 else AGENTS[:1]
        self.words = {name: self.luck.choices(LETTERS)[0] for name in acting}
        return self.words

    def step(self, actions: Mapping[str, str]) -> tuple[dict[str, str], dict[str, float], bool, bool, dict[str, float]]:
        answers = {name: actions[name].strip() for name in self.words}
        paid = dict.fromkeys(AGENTS, 0.0)
        for name, word in self.words.items():
            right = word if name == "first" else _letter_after(word)
            paid[name] = float(answers[name] == right) / (self.turns if name == "first" else 1)
        parts = {"copied": float(answers["second"] == self.words["second"])} if "second" in answers else {}
        self.turn += 1
        is_over = self.turn == self.turns
        return {} if is_over else self.draw(), paid, is_over, False, parts

    def actions(self) -> Mapping[str, Sequence[str]]:
        return {name: [*LETTERS] for name in self.words}

    def close(self) -> None:
        """Nothing to release."""


def _letter_after(letter: str) -> str:
    return LETTERS[(LETTERS.index(letter) + 1) % len(LETTERS)]


class Kuhn:
    """Kuhn poker: each agent pays 1 and gets one of three cards; `p` passes, `b` bets one more or calls.

    An agent observes its card and the actions so far. The higher card wins the stakes unless the other agent folds. Who
    answers with an invalid action pays 2, the largest loss, to the other. The value of the game is -1/18 for the first.
    """

    def reset(self, seed: int) -> tuple[dict[str, str], dict[str, float]]:
        self.cards, self.history = DEALS[seed % len(DEALS)], ""
        return self.observations(), {}

    def step(self, actions: Mapping[str, str]) -> tuple[dict[str, str], dict[str, float], bool, bool, dict[str, float]]:
        seat = self.seat()
        (answer,) = (text.strip() for text in actions.values())
        if answer not in ("p", "b"):
            return {}, self.paid(-2.0 if seat == 0 else 2.0), True, False, {}
        parts = {f"{AGENTS[seat]}_{self.cards[seat]}{self.history}": float(answer == "b")}
        self.history += answer
        won = self.winnings()
        return ({} if won else self.observations()), self.paid(won or 0.0), bool(won), False, parts

    def seat(self) -> int:
        """Return which agent acts next."""
        return len(self.history) % len(AGENTS)

    def winnings(self) -> float | None:
        """Return what the first agent wins from the second, or None before the end."""
        sign = 1.0 if CARDS.index(self.cards[0]) > CARDS.index(self.cards[1]) else -1.0
        showdowns = {"pp": sign, "bb": 2 * sign, "pbb": 2 * sign, "bp": 1.0, "pbp": -1.0}
        return showdowns.get(self.history)

    def paid(self, won: float) -> dict[str, float]:
        """Return the rewards of both agents."""
        return {"first": won, "second": -won}

    def observations(self) -> dict[str, str]:
        return {AGENTS[self.seat()]: self.cards[self.seat()] + self.history}

    def actions(self) -> Mapping[str, Sequence[str]]:
        return {AGENTS[self.seat()]: ["p", "b"]}

    def chance_outcomes(self) -> dict[int, float]:
        """Return one seed for each deal."""
        return dict.fromkeys(range(len(DEALS)), 1 / len(DEALS))


class Caller:
    """The first agent names a letter that it observes in half of the episodes; it may pay to ask the second one.

    Without the letter it observes a question mark. Its answer is a letter, or a question mark: the second agent, who
    observes the letter, then answers with a letter, which the first observes before it names one. Both get 1 for the
    right letter, minus `cost` for a question. Optimal: ask only without the letter.
    """

    def __init__(self, cost: float = 0.2) -> None:
        self.cost = cost

    def reset(self, seed: int) -> tuple[dict[str, str], dict[str, float]]:
        self.letter, self.is_known = LETTERS[seed % len(LETTERS)], bool(seed // len(LETTERS) % 2)
        self.asked, self.answer = False, ""
        return self.observations(), {}

    def step(self, actions: Mapping[str, str]) -> tuple[dict[str, str], dict[str, float], bool, bool, dict[str, float]]:
        ((name, legal),) = self.actions().items()
        (text,) = (text.strip() for text in actions.values())
        if text not in legal:
            return {}, self.paid(-self.cost), True, False, {}
        if text == ASK:
            self.asked = True
        elif name == "second":
            self.answer = text
        else:
            earned = float(text == self.letter) - self.cost * self.asked
            return {}, self.paid(earned), True, False, {"asked": float(self.asked)}
        return self.observations(), {}, False, False, {}

    def paid(self, earned: float) -> dict[str, float]:
        """Return the rewards of both agents."""
        return {"first": earned, "second": earned}

    def observations(self) -> dict[str, str]:
        if self.asked and not self.answer:
            return {"second": self.letter}
        return {"first": (self.letter if self.is_known else ASK) + self.answer}

    def actions(self) -> Mapping[str, Sequence[str]]:
        if self.asked:
            return {"first" if self.answer else "second": [*LETTERS]}
        return {"first": [*LETTERS, ASK]}

    def chance_outcomes(self) -> dict[int, float]:
        """Return one seed for each letter, known or not."""
        return dict.fromkeys(range(2 * len(LETTERS)), 1 / (2 * len(LETTERS)))


class Consultation:
    """A board game of PettingZoo against a random player: the two agents alternate the moves of one side.

    The side alternates between both seats. Both agents get the side's reward.
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
        curriculum=NO_CURRICULUM,
        train_size=1,
        eval_size=1,
        num_workers=1,
        environment_args={},
        max_turns=None,
        env_id=env_id,
        observation=ObservationForm.short,
        invalid_reward=0.0,  # never used: only legal moves reach the environment
        illegal_move=IllegalMove.retry,
        opponent=Opponent.random,
        seat="alternate",
    )


def copy(**arguments: Any) -> Copy:
    return Copy(**arguments)


def copy_alone(length: int = 2) -> CopyAlone:
    return CopyAlone(length)


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


def tictactoe() -> Consultation:
    return Consultation("classic/tictactoe_v3")


def connect_four() -> Consultation:
    return Consultation("classic/connect_four_v3")
