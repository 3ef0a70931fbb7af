"""Environments of the benchmark in which agents act one after another, or only one of them acts in most turns.

In `Kuhn` and `Caller` an invalid action ends the episode with the minimum reward.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import permutations

AGENTS: Sequence[str] = ("first", "second")
LETTERS = "abc"  # the letters to copy
CARDS = "JQK"
DEALS = ["".join(deal) for deal in permutations(CARDS, len(AGENTS))]
ASK = "?"  # the caller's question, and what it observes instead of a letter that it does not know


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
            right = word if name == "first" else letter_after(word)
            paid[name] = float(answers[name] == right) / (self.turns if name == "first" else 1)
        parts = {"copied": float(answers["second"] == self.words["second"])} if "second" in answers else {}
        self.turn += 1
        is_over = self.turn == self.turns
        return {} if is_over else self.draw(), paid, is_over, False, parts

    def actions(self) -> Mapping[str, Sequence[str]]:
        return {name: [*LETTERS] for name in self.words}

    def close(self) -> None:
        """Nothing to release."""


def letter_after(letter: str) -> str:
    """Return the next letter; the first one follows the last one."""
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
        self.is_question, self.answer = False, ""
        return self.observations(), {}

    def step(self, actions: Mapping[str, str]) -> tuple[dict[str, str], dict[str, float], bool, bool, dict[str, float]]:
        ((name, legal),) = self.actions().items()
        (text,) = (text.strip() for text in actions.values())
        if text not in legal:
            return {}, self.paid(-self.cost), True, False, {}
        if text == ASK:
            self.is_question = True
        elif name == "second":
            self.answer = text
        else:
            earned = float(text == self.letter) - self.cost * self.is_question
            return {}, self.paid(earned), True, False, {"asked": float(self.is_question)}
        return self.observations(), {}, False, False, {}

    def paid(self, earned: float) -> dict[str, float]:
        """Return the rewards of both agents."""
        return {"first": earned, "second": earned}

    def observations(self) -> dict[str, str]:
        if self.is_question and not self.answer:
            return {"second": self.letter}
        return {"first": (self.letter if self.is_known else ASK) + self.answer}

    def actions(self) -> Mapping[str, Sequence[str]]:
        if self.is_question:
            return {"first" if self.answer else "second": [*LETTERS]}
        return {"first": [*LETTERS, ASK]}

    def chance_outcomes(self) -> dict[int, float]:
        """Return one seed for each letter, known or not."""
        return dict.fromkeys(range(2 * len(LETTERS)), 1 / (2 * len(LETTERS)))
