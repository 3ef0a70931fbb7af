"""Best responses and NashConv of small games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations, product

import pytest

from ippo_cli.formulas.game_tree import Leaf, Node, best_response, expected_payoffs, nash_conv

Strategy = Mapping[str, float]  # probability of a bet (or call) by card and history, such as "K" or "Qpb"
DUEL = {"rr": 0, "rp": -3, "rs": 1, "pr": 3, "pp": 0, "ps": -1, "sr": -1, "sp": 1, "ss": 0}


def matrix_game(first: Sequence[float], second: Sequence[float]) -> Node:
    """The duel; actions are simultaneous."""
    nodes = [
        Node(player=1, probabilities=second, children=[Leaf((won, -won)) for won in (DUEL[a + b] for b in "rps")])
        for a in "rps"
    ]
    return Node(player=0, probabilities=first, children=nodes)


def kuhn_node(cards: str, history: str, bets: Strategy) -> Node | Leaf:
    sign = 1 if "JQK".index(cards[0]) > "JQK".index(cards[1]) else -1
    if history in ("pp", "bb", "pbb"):
        return Leaf((sign * (1 if history == "pp" else 2), -sign * (1 if history == "pp" else 2)))
    if history in ("bp", "pbp"):
        return Leaf((1, -1) if history == "bp" else (-1, 1))
    player = len(history) % 2
    information = cards[player] + history
    children = [kuhn_node(cards, history + action, bets) for action in "pb"]
    return Node(
        player=player,
        information=information,
        probabilities=[1 - bets[information], bets[information]],
        children=children,
    )


def kuhn(bets: Strategy) -> Node:
    deals = ["".join(deal) for deal in permutations("JQK", 2)]
    return Node(player=None, probabilities=[1 / 6] * 6, children=[kuhn_node(deal, "", bets) for deal in deals])


def equilibrium(alpha: float) -> dict[str, float]:
    """Kuhn's family of equilibria: the first player bets a jack with probability alpha."""
    first = {"J": alpha, "Q": 0.0, "K": 3 * alpha, "Jpb": 0.0, "Qpb": alpha + 1 / 3, "Kpb": 1.0}
    return first | {"Jp": 1 / 3, "Qp": 0.0, "Kp": 1.0, "Jb": 0.0, "Qb": 1 / 3, "Kb": 1.0}


UNIFORM = dict.fromkeys(equilibrium(0.0), 0.5)


def value_by_play(bets: Strategy) -> float:
    """The first player's value, by the rules of the game: independent of trees."""
    total = 0.0
    for first, second in permutations("JQK", 2):
        won = 1 if first > second else -1
        won = {"JQ": -1, "JK": -1, "QK": -1}.get(first + second, 1)
        passes = bets[second + "p"]
        after_check = (1 - passes) * won + passes * ((1 - bets[first + "pb"]) * -1 + bets[first + "pb"] * 2 * won)
        called = bets[second + "b"]
        after_bet = (1 - called) * 1 + called * 2 * won
        total += ((1 - bets[first]) * after_check + bets[first] * after_bet) / 6
    return total


def best_by_enumeration(bets: Strategy, player: int) -> float:
    """The best of the 64 deterministic strategies of a player."""
    own = [name for name in bets if len(name) % 2 == (1 if player == 0 else 0)]
    values = [
        value_by_play({**bets, **dict(zip(own, choice, strict=True))})
        for choice in product((0.0, 1.0), repeat=len(own))
    ]
    return max(values) if player == 0 else -min(values)


def test_uniform_duel() -> None:
    game = matrix_game([1 / 3] * 3, [1 / 3] * 3)
    assert expected_payoffs(game) == pytest.approx((0.0, 0.0))
    assert best_response(game, 0).value == pytest.approx(2 / 3)  # paper
    assert best_response(game, 1).choices == {None: 1}
    assert nash_conv(game, 2) == pytest.approx(4 / 3)


def test_duel_at_its_equilibrium() -> None:
    mixed = [1 / 5, 1 / 5, 3 / 5]
    assert nash_conv(matrix_game(mixed, mixed), 2) == pytest.approx(0.0, abs=1e-12)
    assert nash_conv(matrix_game(mixed, [0.0, 0.0, 1.0]), 2) == pytest.approx(1.0), "rock beats scissors"


def test_unseen_coin() -> None:
    coin = Node(
        player=None,
        probabilities=[0.7, 0.3],
        children=[
            Node(player=0, probabilities=[0.5, 0.5], children=[Leaf((1.0,)), Leaf((0.0,))]),
            Node(player=0, probabilities=[0.5, 0.5], children=[Leaf((0.0,)), Leaf((1.0,))]),
        ],
    )
    assert best_response(coin, 0).value == pytest.approx(0.7), "1 would need the coin"


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
def test_kuhn_at_equilibria(alpha: float) -> None:
    game = kuhn(equilibrium(alpha))
    assert expected_payoffs(game) == pytest.approx((-1 / 18, 1 / 18))
    assert nash_conv(game, 2) == pytest.approx(0.0, abs=1e-12)


def test_kuhn_outside_of_the_family() -> None:
    assert nash_conv(kuhn(equilibrium(0.2) | {"K": 0.2}), 2) > 0.01


@pytest.mark.parametrize("shift", [None, 0.0, 0.3, 0.7])
def test_kuhn_against_enumeration_of_strategies(shift: float | None) -> None:
    bets: dict[str, float] = dict(UNIFORM)
    if shift is not None:
        bets = {name: (shift + 0.37 * place) % 1.0 for place, name in enumerate(UNIFORM)}
    game = kuhn(bets)
    value = value_by_play(bets)
    assert expected_payoffs(game)[0] == pytest.approx(value)
    for player in (0, 1):
        assert best_response(game, player).value == pytest.approx(best_by_enumeration(bets, player))
    expected = best_by_enumeration(bets, 0) - value + best_by_enumeration(bets, 1) + value
    assert nash_conv(game, 2) == pytest.approx(expected)
    if shift is None:
        assert nash_conv(game, 2) == pytest.approx(11 / 12)


def test_choices_are_those_that_others_lead_to() -> None:
    assert set(best_response(kuhn(UNIFORM), 1).choices) == {"Jp", "Qp", "Kp", "Jb", "Qb", "Kb"}
    never = UNIFORM | dict.fromkeys("JQK", 0.0)
    assert set(best_response(kuhn(never), 1).choices) == {"Jp", "Qp", "Kp"}


def test_forgetting_player_rejected() -> None:
    later = Node(player=0, information="x", probabilities=[1.0], children=[Leaf((1.0,))])
    with pytest.raises(ValueError, match="acts twice"):
        best_response(Node(player=0, information="x", probabilities=[1.0], children=[later]), 0)
