"""Hanabi for two agents at a size that can be solved exactly: its rules, and the environment of `task=environment`.

The rules are those of the published game (Bard et al., https://arxiv.org/abs/1902.00506) with fewer colours, ranks,
cards and tokens. `hanabi_bounds.py` has the scores of random and of optimal play. The module needs only the standard
library.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import factorial, prod
from typing import NamedTuple

AGENTS = ("first", "second")
LETTERS = "abcde"  # of colours
MAX_LISTED_DEALS = 100_000  # above it, a seed shuffles the deck instead of counting the deals
NO_LIMIT = -1  # of `Table.turns_left`, while the deck has cards
Hand = tuple[int, ...]  # cards, oldest first; a card is colour * ranks + rank
Hands = tuple[Hand, Hand]  # of the first and of the second agent


class Move(NamedTuple):
    """One legal action; with the touched slots of a hint it is all that both agents observe of it."""

    text: str  # p1: play the first card, d1: discard it, ha: name the cards of colour a, h1: those of rank 1
    slot: int | None = None  # of a card that is played or discarded
    touched: tuple[bool, ...] = ()  # by the hint, for each of the partner's cards


class Table(NamedTuple):
    """What both agents observe, apart from hints."""

    fireworks: tuple[int, ...]  # highest rank on the table, by colour
    gone: tuple[int, ...]  # played and discarded cards, by type
    hints: int
    lives: int
    deck: int  # number of cards
    turns_left: int  # of both agents, after the last card was drawn
    actor: int


class Outcome(NamedTuple):
    """One outcome of a move: its probability is `share / total`."""

    table: Table
    hands: Hands
    share: int
    total: int
    score: int | None  # sum of the fireworks at the end of the game, or None before


@dataclass(frozen=True)
class HanabiRules:
    """The rules for a size. Agents alternate; a hint names all cards of one colour or rank and must touch a card.

    A hint costs a hint token; a discard or a complete firework returns one. A card that does not fit costs a life; the
    last life loses the game, with score 0. After the last card is drawn each agent has one turn.
    """

    colours: int = 2
    copies: tuple[int, ...] = (2, 1)  # cards of each rank, by colour
    hand: int = 2
    hints: int = 1
    lives: int = 1

    def __post_init__(self) -> None:
        limits = {
            f"colours={self.colours}": 1 <= self.colours <= len(LETTERS),
            f"copies={[*self.copies]}": 1 <= len(self.copies) <= 9 and min(self.copies, default=0) >= 1,
            f"hand={self.hand}": self.hand >= 1 and len(AGENTS) * self.hand <= len(self.cards),
            f"hints={self.hints}": 0 <= self.hints <= 9,
            f"lives={self.lives}": 1 <= self.lives <= 9,
        }
        for value, holds in limits.items():
            if not holds:
                raise ValueError(
                    f"{value}; use 1 to {len(LETTERS)} colours, 1 to 9 ranks with at least one card each, hands of "
                    "at least one card that leave no hand empty, 0 to 9 hints and 1 to 9 lives"
                )

    @property
    def ranks(self) -> int:
        return len(self.copies)

    @cached_property
    def types(self) -> tuple[int, ...]:
        """Number of cards of each type."""
        return self.copies * self.colours

    @cached_property
    def cards(self) -> list[int]:
        """All cards, by type."""
        return [card for card, copies in enumerate(self.types) for _ in range(copies)]

    @property
    def best_score(self) -> int:
        return self.colours * self.ranks

    @property
    def deals(self) -> int:
        """Number of different orders of the deck; each is equally likely."""
        return _count_orders(self.types)

    def name_card(self, card: int) -> str:
        """Return a card's colour and rank: `a1`."""
        colour, rank = divmod(card, self.ranks)
        return f"{LETTERS[colour]}{rank + 1}"

    def order_deck(self, seed: int) -> list[int]:
        """Return the deck of a seed: seeds from 0 list all deals, unless they are too many."""
        if self.deals > MAX_LISTED_DEALS:
            return random.Random(seed).sample(self.cards, len(self.cards))
        place, left, deck = seed % self.deals, [*self.types], []
        while any(left):
            for card in range(len(left)):
                if left[card]:
                    left[card] -= 1
                    if place < (orders := _count_orders(left)):
                        deck.append(card)
                        break
                    place -= orders
                    left[card] += 1
        return deck

    def begin(self, deck: Sequence[int]) -> tuple[Table, Hands, list[int]]:
        """Return the table, the hands and the undealt cards of a deck."""
        first, second, rest = deck[: self.hand], deck[self.hand : 2 * self.hand], [*deck[2 * self.hand :]]
        turns_left = NO_LIMIT if rest else len(AGENTS)
        nothing = (0,) * self.colours, (0,) * len(self.types)
        return Table(*nothing, self.hints, self.lives, len(rest), turns_left, 0), (tuple(first), tuple(second)), rest

    def legal_moves(self, table: Table, hands: Hands) -> list[Move]:
        """Return the moves of the agent that acts; they depend on the partner's hand and on the size of its own."""
        slots = range(len(hands[table.actor]))
        moves = [Move(f"p{slot + 1}", slot) for slot in slots]
        if table.hints < self.hints:
            moves += [Move(f"d{slot + 1}", slot) for slot in slots]
        if table.hints:
            seen = hands[1 - table.actor]
            colours, ranks = [card // self.ranks for card in seen], [card % self.ranks for card in seen]
            moves += [
                Move(f"h{LETTERS[value]}", None, tuple(own == value for own in colours))
                for value in sorted(set(colours))
            ]
            moves += [Move(f"h{value + 1}", None, tuple(own == value for own in ranks)) for value in sorted(set(ranks))]
        return moves

    def outcomes(self, table: Table, hands: Hands, move: Move) -> Iterator[Outcome]:
        """Return the outcomes of a move, one for each type of card that may be drawn."""
        left = table.turns_left - 1 if table.turns_left > 0 else table.turns_left
        if move.slot is None:
            score = sum(table.fireworks) if left == 0 else None
            after = table._replace(hints=table.hints - 1, turns_left=left, actor=1 - table.actor)
            yield Outcome(after, hands, 1, 1, score)
            return
        own = hands[table.actor]
        card, rest = own[move.slot], own[: move.slot] + own[move.slot + 1 :]
        after, score = self._put_down(table, card, is_play=move.text.startswith("p"))
        if score is not None or not table.deck:
            score = sum(after.fireworks) if score is None and left == 0 else score
            after = after._replace(turns_left=left, actor=1 - table.actor)
            yield Outcome(after, _with_hand(hands, table.actor, rest), 1, 1, score)
            return
        left = len(AGENTS) if table.deck == 1 else left
        after = after._replace(deck=table.deck - 1, turns_left=left, actor=1 - table.actor)
        for card, number in enumerate(self.unseen(after, hands[1 - table.actor] + rest)):
            if number:
                yield Outcome(after, _with_hand(hands, table.actor, (*rest, card)), number, table.deck, None)

    def unseen(self, table: Table, cards: Sequence[int]) -> list[int]:
        """Return how many cards of each type are neither on the table nor among `cards`."""
        return [
            number - gone - cards.count(card)
            for card, (number, gone) in enumerate(zip(self.types, table.gone, strict=True))
        ]

    def _put_down(self, table: Table, card: int, *, is_play: bool) -> tuple[Table, int | None]:
        """Return the table after a card is played or discarded, and the score if that ends the game."""
        colour, rank = divmod(card, self.ranks)
        gone = _increase(table.gone, card)
        hints, lives, fireworks = table.hints, table.lives, table.fireworks
        fits = is_play and fireworks[colour] == rank
        if fits:
            fireworks = _increase(fireworks, colour)
        if not is_play or (fits and rank == self.ranks - 1):
            hints = min(hints + 1, self.hints)
        lives -= is_play and not fits
        after = table._replace(fireworks=fireworks, gone=gone, hints=hints, lives=lives)
        if not lives:
            return after, 0
        return after, self.best_score if sum(fireworks) == self.best_score else None


class Hanabi:
    """The environment: an agent observes the table, its partner's hand, its hints, and what both did last.

    `10 102 a1b2 a??1 d1a1 ha10`: highest rank of each firework; hint tokens, lives and cards of the deck; the partner's
    cards; the hints about its own cards; what its own last move and the partner's move did. A move is `p` or `d` with a
    card of its own (the oldest is 1), or `h` with a colour or rank. Both agents get each played card as
    `1 / best score`, and lose all of it with the last life. An invalid action is replaced by a random legal one, for
    which no card counts.
    """

    def __init__(
        self, colours: int = 2, copies: Sequence[int] = (2, 1), hand: int = 2, hints: int = 1, lives: int = 1
    ) -> None:
        self.rules = HanabiRules(colours, tuple(copies), hand, hints, lives)

    def reset(self, seed: int) -> tuple[dict[str, str], dict[str, float]]:
        self.luck = random.Random(seed)
        self.table, self.hands, self.deck = self.rules.begin(self.rules.order_deck(seed))
        self.known = [[["?", "?"] for _ in hand] for hand in self.hands]
        self.log: list[str] = []
        self.paid, self.invalid = 0.0, 0
        return self.observations(), {}

    def step(self, actions: Mapping[str, str]) -> tuple[dict[str, str], dict[str, float], bool, bool, dict[str, float]]:
        legal = {move.text: move for move in self.rules.legal_moves(self.table, self.hands)}
        text = actions[AGENTS[self.table.actor]].strip()
        is_invalid = text not in legal
        self.invalid += is_invalid
        move = self.luck.choice([*legal.values()]) if is_invalid else legal[text]
        outcome = self._apply(move)
        earned = (sum(outcome.table.fireworks) - sum(self.table.fireworks)) / self.rules.best_score
        if not outcome.table.lives:
            earned = -self.paid
        elif is_invalid:
            earned = 0.0
        self.paid += earned
        self._record(move)
        self.table, self.hands = outcome.table, outcome.hands
        is_over = outcome.score is not None
        parts = {"fireworks": float(sum(self.table.fireworks)), "invalid": float(self.invalid)}
        parts["lost"] = float(not self.table.lives)
        return self.observations(), dict.fromkeys(AGENTS, earned), is_over, False, parts

    def actions(self) -> Mapping[str, Sequence[str]]:
        """Return the legal moves of the agent that acts."""
        return {AGENTS[self.table.actor]: [move.text for move in self.rules.legal_moves(self.table, self.hands)]}

    def observations(self) -> dict[str, str]:
        """Return what the agent that acts observes."""
        table, actor = self.table, self.table.actor
        fields = [
            "".join(map(str, table.fireworks)),
            f"{table.hints}{table.lives}{table.deck}",
            "".join(map(self.rules.name_card, self.hands[1 - actor])),
            "".join(colour + rank for colour, rank in self.known[actor]),
            *self.log[-len(AGENTS) :],
        ]
        return {AGENTS[actor]: " ".join(fields)}

    def chance_outcomes(self) -> dict[int, float]:
        """Return one seed for each deal, or none if they are too many."""
        deals = self.rules.deals
        return dict.fromkeys(range(deals), 1 / deals) if deals <= MAX_LISTED_DEALS else {}

    def close(self) -> None:
        """Nothing to release."""

    def _apply(self, move: Move) -> Outcome:
        """Return the outcome in which the deck's next card is drawn."""
        draws = move.slot is not None and self.deck
        found = [*self.rules.outcomes(self.table, self.hands, move)]
        if not draws or found[0].score is not None:
            return found[0]
        card = self.deck.pop(0)
        return next(outcome for outcome in found if outcome.hands[self.table.actor][-1] == card)

    def _record(self, move: Move) -> None:
        """Update the log and the known colours and ranks, before the hands change."""
        actor = self.table.actor
        if move.slot is None:
            kind, value = move.text[1].isdigit(), move.text[1]
            for known, touched in zip(self.known[1 - actor], move.touched, strict=True):
                known[kind] = value if touched else known[kind]
            self.log.append(move.text + "".join(str(int(touched)) for touched in move.touched))
            return
        self.log.append(move.text + self.rules.name_card(self.hands[actor][move.slot]))
        del self.known[actor][move.slot]
        if self.table.deck:
            self.known[actor].append(["?", "?"])


def hanabi(colours: int = 2, copies: Sequence[int] = (2, 1), hand: int = 2, hints: int = 1, lives: int = 1) -> Hanabi:
    return Hanabi(colours, copies, hand, hints, lives)


def _count_orders(types: Sequence[int]) -> int:
    """Return the number of different orders of cards with these numbers of each type."""
    return factorial(sum(types)) // prod(map(factorial, types))


def _increase(numbers: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*numbers[:place], numbers[place] + 1, *numbers[place + 1 :])


def _with_hand(hands: Hands, actor: int, hand: Hand) -> Hands:
    return (hands[0], hand) if actor else (hand, hands[1])
