"""Properties of all environments: determinism, reuse, threads, random play."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from making import gymnasium, pettingzoo, play, random_turns, reasoning_gym, row

from ippo_cli.config.schema import EnvironmentTaskConfig, GymnasiumConfig
from ippo_cli.tasks.environments.build import make_environment_factory

WORLDS: dict[str, EnvironmentTaskConfig] = {
    "lake": gymnasium("FrozenLake-v1"),
    "lake in words": gymnasium("FrozenLake-v1", "words"),
    "still lake": gymnasium("FrozenLake-v1", is_slippery=False),
    "cliff": gymnasium("CliffWalking-v1"),
    "taxi": gymnasium("Taxi-v4"),
    "fickle taxi": gymnasium("Taxi-v4", is_rainy=True, fickle_passenger=True),
    "blackjack": gymnasium("Blackjack-v1"),
    "pole": gymnasium("CartPole-v1"),
    "tictactoe": pettingzoo("classic/tictactoe_v3", seat="alternate"),
    "tictactoe of two": pettingzoo("classic/tictactoe_v3", "one two"),
    "connect four": pettingzoo("classic/connect_four_v3", seat=1),
    "hands": pettingzoo("classic/rps_v2"),
    "hands of two": pettingzoo("classic/rps_v2", "one two"),
    "poker": pettingzoo("classic/leduc_holdem_v4", seat="alternate"),
    "sums": reasoning_gym("chain_sum", 3),
    "sudoku": reasoning_gym("mini_sudoku", 2),
}


def stories(config: EnvironmentTaskConfig, count: int) -> list[Any]:
    """Episodes of one reused environment."""
    world = make_environment_factory(config)()
    return [play(world, row(number % 4, number), number % 3, number % 5) for number in range(count)]


@pytest.mark.parametrize("name", WORLDS)
def test_same_example_seed_and_actions_give_the_same_episode(name: str) -> None:
    expected = stories(WORLDS[name], 12)
    assert expected == stories(WORLDS[name], 12), "in another environment of the same configuration"
    world = make_environment_factory(WORLDS[name])()
    backwards = [play(world, row(number % 4, number), number % 3, number % 5) for number in reversed(range(12))]
    assert expected == backwards[::-1], "independent of earlier episodes"


@pytest.mark.parametrize("name", WORLDS)
def test_environments_in_threads_are_independent(name: str) -> None:
    expected = stories(WORLDS[name], 12)
    make = make_environment_factory(WORLDS[name])
    worlds = [make() for _ in range(12)]

    def play_repeatedly(number: int) -> Any:
        for _ in range(3):
            story = play(worlds[number], row(number % 4, number), number % 3, number % 5)
        return story

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(play_repeatedly, range(12))) == expected


@pytest.mark.parametrize("name", WORLDS)
def test_random_play_gives_legal_actions(name: str) -> None:
    pairs = random_turns(WORLDS[name], 0, 30)
    assert len(pairs) >= 30
    assert pairs == random_turns(WORLDS[name], 0, 30)
    assert pairs != random_turns(WORLDS[name], 1, 30)
    if isinstance(WORLDS[name], GymnasiumConfig):
        offered = make_environment_factory(WORLDS[name])()
        offered.reset(row(0), 0)
        assert {answer for _, answer in pairs} == set(offered.actions()["solo"])


def test_random_play_reveals_no_solutions() -> None:
    config = reasoning_gym("spell_backward")
    pairs = random_turns(config, 0, 50)
    assert len(pairs) == 50
    right = [answer == observation.rsplit(" ", 1)[-1][::-1] for observation, answer in pairs]
    assert not any(right)
    assert all(answer.isalpha() for _, answer in pairs)


def test_random_play_of_tictactoe_names_free_squares() -> None:
    turns = random_turns(WORLDS["tictactoe"], 0, 30)
    assert len(turns) > 60, "every game has more than two moves of an agent"
    for board, square in turns:
        assert board[int(square)] == "."


def test_thousand_environments_share_their_tables() -> None:
    make = make_environment_factory(WORLDS["taxi"])
    worlds = [make() for _ in range(1000)]
    assert len({id(world.env.unwrapped) for world in worlds}) == 1000  # type: ignore[attr-defined]
    assert len({id(world.env.unwrapped.P) for world in worlds}) == 1  # type: ignore[attr-defined]
