"""Returns of random and optimal play, compared with known numbers and with episodes of the environments."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="needs ippo-cli[environments]")
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "bench"), str(ROOT / "tests" / "tasks" / "environments")]

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
Player = Callable[[SupportsActions, str, int], str]  # (environment, observation, remaining turns) -> action


def mean_return(environment: SupportsActions, player: Player, turns: int) -> tuple[float, float]:
    """Return the mean return of episodes and its standard error."""
    returns = []
    for number in range(EPISODES):
        observation = environment.reset(making.row(number), number)["solo"]
        total, left = 0.0, turns
        while True:
            step = making.act(environment, solo=player(environment, observation, left))
            total, left, observation = total + step.rewards["solo"], left - 1, step.observations["solo"]
            if step.terminated or step.truncated:
                break
        returns.append(total)
    return statistics.fmean(returns), statistics.stdev(returns) / EPISODES**0.5


def assert_earns(expected: float, environment: SupportsActions, player: Player, turns: int = 0) -> None:
    mean, error = mean_return(environment, player, turns)
    assert abs(mean - expected) < 4 * error + 1e-9, (mean, error, expected)


def random_player() -> Player:
    rng = random.Random(0)
    return lambda environment, observation, left: rng.choice(environment.actions()["solo"])


def test_frozen_lake_optimum() -> None:
    returns = tabular_returns(gymnasium.make("FrozenLake-v1"), 100)
    assert returns.optimal == pytest.approx(0.7442, abs=1e-3)
    deterministic = gymnasium.make("FrozenLake-v1", is_slippery=False)
    assert [tabular_returns(deterministic, turns).optimal for turns in (5, 6, 32)] == [0.0, 1.0, 1.0]


def test_cliff_walking_optimum_takes_13_steps() -> None:
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
def test_tabular_returns_match_episodes(env_id: str, arguments: dict, turns: int) -> None:
    env = gymnasium.make(env_id, **arguments)
    returns = tabular_returns(env, turns)
    environment = make_environment_factory(making.gymnasium(env_id, "numbers", max_turns=turns, **arguments))()
    model = env.unwrapped
    later_values = [backward_induction(model.P, left, max) for left in range(turns)]  # type: ignore[attr-defined]

    def act_optimally(environment: SupportsActions, observation: str, left: int) -> str:
        return str(best_action(model.P[int(observation)], later_values[left - 1]))  # type: ignore[attr-defined]

    assert_earns(returns.random, environment, random_player(), turns)
    assert_earns(returns.optimal, environment, act_optimally, turns)


def test_blackjack_returns_match_episodes() -> None:
    returns = blackjack_returns()
    environment = make_environment_factory(making.gymnasium("Blackjack-v1", "numbers"))()

    def act_optimally(environment: SupportsActions, observation: str, left: int) -> str:
        total, dealer, ace = map(int, observation.split())
        return str(int(hits(total, bool(ace), dealer)))

    assert_earns(returns.random, environment, random_player())
    assert_earns(returns.optimal, environment, act_optimally)
    assert [hits(16, False, up) for up in (6, 10)] == [False, True], "as in basic strategy tables"
    assert [hits(18, True, up) for up in (8, 9)] == [False, True]


@pytest.mark.parametrize("seat", [0, 1])
def test_tictactoe_odds_match_episodes(seat: int) -> None:
    environment = make_environment_factory(making.pettingzoo("classic/tictactoe_v3", seat=seat))()
    for optimal, player in (
        (False, random_player()),
        (True, lambda environment, observation, left: str(best_square(observation))),
    ):
        win, draw, loss = tictactoe_odds(optimal=optimal, first=seat == 0)
        assert win + draw + loss == pytest.approx(1.0)
        assert_earns(win - loss, environment, player)


def test_random_tictactoe_odds() -> None:
    assert tictactoe_odds(optimal=False, first=True) == pytest.approx((0.5849, 0.1270, 0.2881), abs=1e-4)


def test_table_has_a_line_for_every_environment() -> None:
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
