"""What random and optimal play earn: against known numbers, and against episodes of the worlds themselves."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="needs ippo-cli[environments]")
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "bench"), str(ROOT / "tests" / "tasks" / "worlds")]

import making  # noqa: E402
from play import (  # noqa: E402
    backward_induction,
    best_action,
    best_square,
    blackjack_returns,
    hits,
    table,
    tabular_returns,
    tictactoe_odds,
)

from ippo_cli.tasks.environments.build import make_environment_factory  # noqa: E402
from ippo_cli.tasks.warm_start import SupportsActions  # noqa: E402

EPISODES = 600
Player = Callable[[SupportsActions, str, int], str]  # of the world, what is told and the turns that are left


def mean_return(world: SupportsActions, player: Player, turns: int) -> tuple[float, float]:
    """The mean return of episodes, and its standard error."""
    returns = []
    for number in range(EPISODES):
        told = world.reset(making.row(number), number)["solo"]
        total, left = 0.0, turns
        while True:
            step = making.act(world, solo=player(world, told, left))
            total, left, told = total + step.rewards["solo"], left - 1, step.observations["solo"]
            if step.terminated or step.truncated:
                break
        returns.append(total)
    return statistics.fmean(returns), statistics.stdev(returns) / EPISODES**0.5


def assert_earns(expected: float, world: SupportsActions, player: Player, turns: int = 0) -> None:
    mean, error = mean_return(world, player, turns)
    assert abs(mean - expected) < 4 * error + 1e-9, (mean, error, expected)


def randomly() -> Player:
    luck = random.Random(0)
    return lambda world, told, left: luck.choice(world.actions()["solo"])


def test_the_lake_has_its_known_optimum() -> None:
    returns = tabular_returns(gymnasium.make("FrozenLake-v1"), 100)
    assert returns.optimal == pytest.approx(0.7442, abs=1e-3)
    still = gymnasium.make("FrozenLake-v1", is_slippery=False)
    assert [tabular_returns(still, turns).optimal for turns in (5, 6, 32)] == [0.0, 1.0, 1.0]


def test_the_cliff_is_walked_around_in_thirteen_steps() -> None:
    env = gymnasium.make("CliffWalking-v1")
    assert [tabular_returns(env, turns).optimal for turns in (10, 13, 40)] == [-10.0, -13.0, -13.0]


@pytest.mark.parametrize(
    ("env_id", "arguments", "turns"),
    [
        ("FrozenLake-v1", {}, 20),
        ("CliffWalking-v1", {}, 16),
        ("CliffWalking-v1", {"is_slippery": True}, 8),
        ("Taxi-v4", {}, 18),
    ],
)
def test_episodes_of_the_world_earn_what_was_computed(env_id: str, arguments: dict, turns: int) -> None:
    env = gymnasium.make(env_id, **arguments)
    returns = tabular_returns(env, turns)
    world = make_environment_factory(making.gymnasium(env_id, "numbers", max_turns=turns, **arguments))()
    model = env.unwrapped
    behind = [backward_induction(model.P, left, max) for left in range(turns)]  # type: ignore[attr-defined]

    def optimally(world: SupportsActions, told: str, left: int) -> str:
        return str(best_action(model.P[int(told)], behind[left - 1]))  # type: ignore[attr-defined]

    assert_earns(returns.random, world, randomly(), turns)
    assert_earns(returns.optimal, world, optimally, turns)


def test_blackjack_earns_what_was_computed() -> None:
    returns = blackjack_returns()
    world = make_environment_factory(making.gymnasium("Blackjack-v1", "numbers"))()

    def optimally(world: SupportsActions, told: str, left: int) -> str:
        total, dealer, ace = map(int, told.split())
        return str(int(hits(total, bool(ace), dealer)))

    assert_earns(returns.random, world, randomly())
    assert_earns(returns.optimal, world, optimally)
    assert [hits(16, False, up) for up in (6, 10)] == [False, True], "as every table of basic strategy has it"
    assert [hits(18, True, up) for up in (8, 9)] == [False, True]


@pytest.mark.parametrize("seat", [0, 1])
def test_tictactoe_earns_what_was_computed(seat: int) -> None:
    world = make_environment_factory(making.pettingzoo("classic/tictactoe_v3", seat=seat))()
    for optimal, player in ((False, randomly()), (True, lambda world, told, left: str(best_square(told)))):
        win, draw, loss = tictactoe_odds(optimal=optimal, first=seat == 0)
        assert win + draw + loss == pytest.approx(1.0)
        assert_earns(win - loss, world, player)


def test_random_players_of_tictactoe_win_as_often_as_is_known() -> None:
    assert tictactoe_odds(optimal=False, first=True) == pytest.approx((0.5849, 0.1270, 0.2881), abs=1e-4)


def test_the_table_has_a_line_for_every_world() -> None:
    lines = list(table(8))
    assert [line.split("|")[1].strip() for line in lines[2:]] == [
        "FrozenLake-v1",
        "FrozenLake-v1, not slippery",
        "CliffWalking-v1",
        "Taxi-v4",
        "Blackjack-v1",
        "classic/tictactoe_v3 against random play, first seat",
        "classic/tictactoe_v3 against random play, second seat",
    ]
