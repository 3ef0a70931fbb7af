"""Small Hanabi: rules, observations, and scores against exhaustive searches through the environment's own texts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

import pytest

from ippo_cli.benchmark.hanabi import AGENTS, Hanabi, HanabiRules, Hands
from ippo_cli.benchmark.hanabi_bounds import HanabiGame, OptimalTeam, hanabi_scores, single_score
from ippo_cli.benchmark.public_beliefs import Branch, TeamSolver, full_information_score, random_score
from ippo_cli.benchmark.tasks import BENCHMARK_TASKS

DEFAULT = HanabiRules()
SMALL = HanabiRules(copies=(1, 1), hand=1)
History = tuple[str, ...]  # an agent's observations and moves, in turn


class Situation(NamedTuple):
    """A game in progress: its seed, the moves so far, and what both agents observed and did."""

    seed: int
    moves: History
    histories: tuple[History, History]
    actor: int
    legal: tuple[str, ...]
    score: float
    is_over: bool


def test_rules_of_plays_hints_tokens_and_end() -> None:
    world = Hanabi()
    deck = [0, 1, 0, 2, 2, 3]  # first: a1 a2; second: a1 b1; then b1, b2
    seed = next(seed for seed in world.chance_outcomes() if world.rules.order_deck(seed) == deck)
    assert world.reset(seed) == ({"first": "00 112 a1b1 ????"}, {})
    assert world.actions() == {"first": ["p1", "p2", "ha", "hb", "h1"]}, "no discard with all hint tokens"
    moves = [
        ("hb", {"second": "00 012 a1a2 ??b? hb01"}, 0.0),
        ("p2", {"first": "01 011 a1b1 ???? hb01 p2b1"}, 0.25),  # the drawn b1 is new to the hand
        ("d2", {"second": "01 110 a1b2 ???? p2b1 d2a2"}, 0.0),  # returns the token; the last card is drawn
        ("p1", {"first": "11 110 b1 ???? d2a2 p1a1"}, 0.25),
        ("p2", {"second": "12 110 a1 ?? p1a1 p2b2"}, 0.25),
    ]
    for move, observations, reward in moves:
        (agent,) = world.actions()
        seen, rewards, is_over, _, parts = world.step({agent: move})
        assert (seen, rewards) == (observations, dict.fromkeys(AGENTS, reward)), move
    assert is_over
    assert parts == {"fireworks": 3.0, "invalid": 0.0, "lost": 0.0}


def test_last_life_loses_everything_and_invalid_moves_earn_nothing() -> None:
    world = Hanabi(copies=(3, 1), lives=1, hints=0)
    seed = next(seed for seed in world.chance_outcomes() if world.rules.order_deck(seed)[:4] == [0, 0, 0, 2])
    world.reset(seed)
    assert world.step({"first": " p1\n"})[1] == {"first": 0.25, "second": 0.25}
    _, rewards, is_over, _, parts = world.step({"second": "p1"})
    assert (rewards, is_over, parts["lost"]) == ({"first": -0.25, "second": -0.25}, True, 1.0)
    world.reset(seed)
    _, rewards, is_over, _, parts = world.step({"first": "fold"})  # replaced by a play of a1
    assert (rewards["first"], is_over, parts) == (0.0, False, {"fireworks": 1.0, "invalid": 1.0, "lost": 0.0})


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"colours": 0}, "colours=0"), ({"copies": (2, 0)}, r"copies=\[2, 0\]"), ({"hand": 4}, "hand=4"),
     ({"hints": -1}, "hints=-1"), ({"lives": 0}, "lives=0")],
)  # fmt: skip
def test_impossible_sizes_are_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named}; use 1 to 5 colours"):
        Hanabi(**arguments)


def test_seeds_list_all_deals_once_and_large_decks_are_shuffled() -> None:
    decks = {tuple(DEFAULT.order_deck(seed)) for seed in range(DEFAULT.deals)}
    assert len(decks) == DEFAULT.deals == len(Hanabi().chance_outcomes()) == 180
    assert {tuple(sorted(deck)) for deck in decks} == {(0, 0, 1, 2, 2, 3)}
    large = Hanabi(colours=5, copies=(3, 2, 2, 2, 1), hand=5, hints=8, lives=3)
    assert large.chance_outcomes() == {}
    assert large.rules.order_deck(7) == large.rules.order_deck(7) != large.rules.order_deck(8)
    assert sorted(large.rules.order_deck(7)) == large.rules.cards


def test_scores_match_play_of_random_and_optimal_agents() -> None:
    scores = hanabi_scores(SMALL)
    assert scores.random < scores.single < scores.best < scores.full_information
    world, luck = Hanabi(copies=SMALL.copies, hand=SMALL.hand), random.Random(0)
    random_games = [_play_randomly(world, seed, luck) for seed in range(100 * SMALL.deals)]
    assert fmean(random_games) == pytest.approx(scores.random, abs=0.02)
    team = OptimalTeam(SMALL)
    assert fmean(_play_team(world, team, seed) for seed in range(SMALL.deals)) == pytest.approx(scores.best, abs=1e-12)


def test_default_size_has_documented_scores() -> None:
    scores, team, world = hanabi_scores(DEFAULT), OptimalTeam(DEFAULT), Hanabi()
    played = fmean(_play_team(world, team, seed) for seed in range(DEFAULT.deals))
    assert played == pytest.approx(scores.best, abs=1e-12)
    assert scores.best == pytest.approx(149 / 180)
    listed = BENCHMARK_TASKS["hanabi"].bounds()
    assert (listed.random, listed.single) == pytest.approx((scores.random, scores.single), abs=1e-6)
    assert (listed.best, scores.full_information) == (pytest.approx(scores.best), 1.0)


@pytest.mark.parametrize("copies", [(2, 1), (1, 2)])
def test_scores_match_all_policies_of_one_agent_with_best_responses(copies: tuple[int, ...]) -> None:
    rules = HanabiRules(colours=1, copies=copies, hand=1)
    world = Hanabi(colours=1, copies=copies, hand=1)
    deals = [_reach(world, seed, ()) for seed in range(rules.deals)]
    weighted = [(deal, 1 / rules.deals) for deal in deals]
    every = [_respond(world, weighted, policy) for policy in _list_policies(world, deals)]
    assert len(every) in (760, 286)
    assert max(every) == pytest.approx(hanabi_scores(rules).best)
    assert _respond(world, weighted, None) == pytest.approx(single_score(HanabiGame(rules), 1) / rules.best_score)


class MatrixTeam:
    """A game of one move of each agent: each observes its own card, and the second agent the first one's move."""

    def __init__(self, payoffs: Sequence[Any]) -> None:
        self.payoffs = payoffs  # by the first card, the second card, the first move, the second move
        self.choices = len(payoffs[0][0])

    def begin(self) -> tuple[tuple[int, ...], Mapping[tuple[int, int], int]]:
        cards = range(len(self.payoffs))
        return (), dict.fromkeys(product(cards, cards), 1)

    def observe(self, public: tuple[int, ...], private: tuple[int, int]) -> int:
        return private[len(public)]

    def moves(self, public: tuple[int, ...], private: tuple[int, int]) -> Sequence[int]:
        return range(self.choices)

    def branches(self, public: tuple[int, ...], private: tuple[int, int], move: int) -> Iterator[Branch]:
        moves = (*public, move)
        score = self.payoffs[private[0]][private[1]][moves[0]][moves[1]] if len(moves) == 2 else None
        yield Branch(moves, private, 1, 1, score)


# The matrix game of Foerster et al., https://arxiv.org/abs/1811.01458; its optimal score is 10.
BAYESIAN_ACTION_DECODER = [
    [[[10, 0, 0], [4, 8, 4], [10, 0, 0]], [[0, 0, 10], [4, 8, 4], [0, 0, 10]]],
    [[[0, 0, 10], [4, 8, 4], [0, 0, 0]], [[10, 0, 0], [4, 8, 4], [10, 0, 0]]],
]


def test_solver_finds_published_optimum_of_matrix_game() -> None:
    game = MatrixTeam(BAYESIAN_ACTION_DECODER)
    assert TeamSolver(game).score() == 10.0
    assert full_information_score(game) == 10.0
    assert random_score(game) == pytest.approx(fmean(_flatten(BAYESIAN_ACTION_DECODER)))


@pytest.mark.parametrize("seed", range(5))
def test_solver_matches_all_joint_policies_of_random_games(seed: int) -> None:
    rng, cards, choices = random.Random(seed), range(3), range(2)
    payoffs = [[[[rng.randrange(10) for _ in choices] for _ in choices] for _ in cards] for _ in cards]
    firsts = [*product(choices, repeat=len(cards))]  # a move for each card
    seconds = [*product(product(choices, repeat=len(cards)), repeat=len(choices))]  # by the first move and the card
    best = max(
        sum(payoffs[one][two][first[one]][second[first[one]][two]] for one, two in product(cards, cards))
        for first, second in product(firsts, seconds)
    )
    assert TeamSolver(MatrixTeam(payoffs)).score() == pytest.approx(best / len(cards) ** 2)


def test_game_lists_hands_with_orders_of_deck() -> None:
    table, states = HanabiGame(DEFAULT).begin()
    assert sum(states.values()) == DEFAULT.deals
    assert states[((0, 0), (2, 2))] == 2, "the deck has a2 and b2"
    assert (table.deck, table.turns_left) == (2, -1)


def _play_randomly(world: Hanabi, seed: int, luck: random.Random) -> float:
    world.reset(seed)
    total, is_over = 0.0, False
    while not is_over:
        ((agent, legal),) = world.actions().items()
        _, rewards, is_over, _, _ = world.step({agent: luck.choice(legal)})
        total += rewards[agent]
    return total


def _play_team(world: Hanabi, team: OptimalTeam, seed: int) -> float:
    world.reset(seed)
    team.begin()
    total, is_over = 0.0, False
    while not is_over:
        actor = world.table.actor
        hands: Hands = world.hands
        move = team.choose(hands[1 - actor])
        _, rewards, is_over, _, _ = world.step({AGENTS[actor]: move.text})
        total += rewards["first"]
        if not is_over:
            team.follow(move, world.table)
    return total


def _reach(world: Hanabi, seed: int, moves: History) -> Situation:
    """Play these moves. A move of the other agent reaches an agent's history as part of its next observation."""
    observations, _ = world.reset(seed)
    histories: dict[str, History] = {"first": (), "second": ()}
    score, is_over = 0.0, False
    for move in moves:
        ((agent, text),) = observations.items()
        histories[agent] += (text, move)
        observations, rewards, is_over, _, _ = world.step({agent: move})
        score += rewards[agent]
    ((agent, text),) = observations.items()
    histories[agent] += (text,)
    return Situation(
        seed,
        moves,
        (histories["first"], histories["second"]),
        AGENTS.index(agent),
        tuple(world.actions()[agent]),
        score,
        is_over,
    )


def _continue(world: Hanabi, found: Situation, move: str) -> Situation:
    return _reach(world, found.seed, (*found.moves, move))


def _list_policies(world: Hanabi, situations: list[Situation]) -> Iterator[dict[History, str]]:
    """Yield all policies of the first agent that differ where they are reached, for all moves of the second one."""
    open_situations: list[Situation] = []
    stack = [*situations]
    while stack:
        found = stack.pop()
        if found.actor == 1 and not found.is_over:
            stack += [_continue(world, found, move) for move in found.legal]
        elif not found.is_over:
            open_situations.append(found)
    by_history: dict[History, list[Situation]] = {}
    for found in open_situations:
        by_history.setdefault(found.histories[0], []).append(found)
    plans = [
        [
            {history: move} | later
            for move in same[0].legal
            for later in _list_policies(world, [_continue(world, found, move) for found in same])
        ]
        for history, same in by_history.items()
    ]
    for chosen in product(*plans):
        yield {history: move for plan in chosen for history, move in plan.items()}


def _respond(
    world: Hanabi, situations: Sequence[tuple[Situation, float]], policy: Mapping[History, str] | None
) -> float:
    """Return the second agent's best score, weighted, against a policy of the first one; None: it moves at random."""
    total, by_history, stack = 0.0, dict[History, list[tuple[Situation, float]]](), [*situations]
    while stack:
        found, weight = stack.pop()
        if found.is_over:
            total += weight * found.score
        elif found.actor == 0:
            moves = found.legal if policy is None else [policy[found.histories[0]]]
            stack += [(_continue(world, found, move), weight / len(moves)) for move in moves]
        else:
            by_history.setdefault(found.histories[1], []).append((found, weight))
    return total + sum(
        max(
            _respond(world, [(_continue(world, found, move), weight) for found, weight in same], policy)
            for move in same[0][0].legal
        )
        for same in by_history.values()
    )


def _flatten(nested: Any) -> list[float]:
    return [nested] if isinstance(nested, (int, float)) else [number for part in nested for number in _flatten(part)]
