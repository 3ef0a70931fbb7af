"""PettingZoo games as text: seats, legal moves, rewards."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from making import INVALID, act, pettingzoo, play, row
from spoken import episode

from ippo_cli.config.errors import ConfigError
from ippo_cli.tasks.environments.build import make_environment_factory
from ippo_cli.tasks.environments.spaces import ActionTexts

TICTACTOE, CONNECT, HANDS = "classic/tictactoe_v3", "classic/connect_four_v3", "classic/rps_v2"


def test_tictactoe_rewards_winner_and_loser_in_one_step() -> None:
    world = make_environment_factory(pettingzoo(TICTACTOE, "one two"))()
    assert world.reset(row(0), 0) == {"one": "........."}
    assert act(world, one="0").observations == {"two": "o........"}
    assert act(world, two="4").observations == {"one": "x...o...."}
    act(world, one="1")
    step = act(world, two="5")
    assert (step.observations, step.rewards) == ({"one": "xx..oo..."}, {"one": 0.0, "two": 0.0})
    last = act(world, one="2")
    assert last.terminated
    assert last.rewards == {"one": 1.0, "two": -1.0}
    assert last.observations == {"one": "xxx.oo...", "two": "ooo.xx..."}
    assert last.parts == {
        "invalid": 0.0,
        "win_one": 1.0,
        "draw_one": 0.0,
        "loss_one": 0.0,
        "win_two": 0.0,
        "draw_two": 0.0,
        "loss_two": 1.0,
    }


def test_drawn_game_has_zero_rewards() -> None:
    world = make_environment_factory(pettingzoo(TICTACTOE, "one two"))()
    world.reset(row(0), 0)
    for move, square in enumerate("401762538"):
        step = act(world, **{("one", "two")[move % 2]: square})
    assert step.terminated
    assert step.rewards == {"one": 0.0, "two": 0.0}
    assert [step.parts[name] for name in ("draw_one", "draw_two", "win_one", "loss_two")] == [1.0, 1.0, 0.0, 0.0]


def test_illegal_or_unreadable_move_has_penalty_and_is_repeated() -> None:
    world = make_environment_factory(pettingzoo(TICTACTOE, "one two"))()
    world.reset(row(0), 0)
    act(world, one="0")
    for count, text in enumerate(("0", "9", "four"), 1):
        step = act(world, two=text)
        assert step.observations == {"two": "o........"}
        assert step.rewards == {"one": 0.0, "two": INVALID}
        assert step.parts == {"invalid": float(count)}
    assert act(world, two="4").observations == {"one": "x...o...."}


def test_illegal_move_lose_ends_the_game(caplog: pytest.LogCaptureFixture) -> None:
    world = make_environment_factory(pettingzoo(TICTACTOE, "one two", illegal="lose"))()
    for _ in range(2):
        world.reset(row(0), 0)
        act(world, one="0")
        with caplog.at_level(logging.WARNING):
            step = act(world, two="0")
        assert step.terminated
        assert step.rewards == {"one": 0.0, "two": -1.0}
        assert (step.parts["loss_two"], step.parts["win_one"], step.parts["draw_one"]) == (1.0, 0.0, 1.0)
        assert caplog.records == []
    world.reset(row(0), 0)
    assert act(world, one="none").observations == {"one": "........."}, (
        "a text that is not a move cannot be passed to the game"
    )


def test_connect_four_text_and_full_column() -> None:
    world = make_environment_factory(pettingzoo(CONNECT, "one two"))()
    assert world.reset(row(0), 0) == {"one": "//////"}
    for move in range(6):
        step = act(world, **{("one", "two")[move % 2]: "3"})
    assert step.observations == {"one": "///xoxoxo///"}
    assert world.actions() == {"one": ["0", "1", "2", "4", "5", "6"]}
    assert act(world, one="3").rewards["one"] == INVALID
    assert act(world, one="0").observations == {"two": "o///oxoxox///"}


def test_board_in_words_has_rows_from_top() -> None:
    world = make_environment_factory(pettingzoo(CONNECT, "one two", "words"))()
    world.reset(row(0), 0)
    act(world, one="0")
    step = act(world, two="6")
    assert step.observations["one"].splitlines()[1:] == ["......."] * 5 + ["x.....o"]


def test_parallel_game_has_simultaneous_actions() -> None:
    world = make_environment_factory(pettingzoo(HANDS, "one two", max_cycles=3))()
    assert world.reset(row(0), 0) == {"one": "-", "two": "-"}
    step = act(world, one="rock", two="p")
    assert step.observations == {"one": "p", "two": "r"}
    assert step.rewards == {"one": -1.0, "two": 1.0}
    act(world, one="s", two="p")
    step = act(world, one="2", two="0")
    assert (step.terminated, step.truncated) == (False, True), "the game has a limit on rounds"
    assert step.rewards == {"one": -1.0, "two": 1.0}
    assert (step.parts["loss_one"], step.parts["win_two"]) == (1.0, 1.0)


def test_parallel_game_waits_for_valid_actions() -> None:
    world = make_environment_factory(pettingzoo(HANDS, "one two"))()
    world.reset(row(0), 0)
    step = act(world, one="rock", two="stone")
    assert step.observations == {"two": "-"}
    assert step.rewards == {"one": 0.0, "two": INVALID}
    step = act(world, two="scissors")
    assert step.observations == {"one": "s", "two": "r"}
    assert step.rewards == {"one": 1.0, "two": -1.0}


def test_additional_actions_have_names() -> None:
    world = make_environment_factory(pettingzoo(HANDS, "one two", num_actions=7))()
    world.reset(row(0), 0)
    assert world.actions()["one"] == ["r", "p", "2", "3", "l", "5", "6"]
    assert act(world, one="spock", two="rock").rewards == {"one": 1.0, "two": -1.0}
    assert act(world, one="action_7", two="6").rewards == {"one": 0.0, "two": 0.0}


@pytest.mark.parametrize(("seat", "begins"), [(0, [True, True]), (1, [False, False]), ("alternate", [True, False])])
def test_seat_is_that_of_the_first_agent(seat: int | str, begins: list[bool]) -> None:
    world = make_environment_factory(pettingzoo(TICTACTOE, seat=seat))()
    for example, first in enumerate(begins):
        result = world.reset(row(example), 0)["solo"]
        assert Counter(result) == ({".": 9} if first else {".": 8, "o": 1})


def test_alternate_seats_swap_agents() -> None:
    world = make_environment_factory(pettingzoo(TICTACTOE, "one two", seat="alternate"))()
    assert [list(world.reset(row(example), 0)) for example in range(3)] == [["one"], ["two"], ["one"]]


def test_opponent_moves_are_legal_and_seeded() -> None:
    world = make_environment_factory(pettingzoo(TICTACTOE, seat=1))()
    assert play(world, row(0), 3, 1) == play(world, row(0), 3, 1)
    begun = Counter(world.reset(row(0), seed)["solo"].index("o") for seed in range(900))
    assert set(begun) == set(range(9))
    assert 60 < min(begun.values()) <= max(begun.values()) < 140, "uniformly, 100 each"


def test_opponent_win_is_rewarded_in_previous_step() -> None:
    world = make_environment_factory(pettingzoo(TICTACTOE))()
    results = []
    for seed in range(60):
        story = play(world, row(0), seed, seed)
        rewards = [entry[2]["solo"] for entry in story[1:] if entry[0]["solo"] != "?"]
        parts = story[-1][-1]
        assert parts["win"] + parts["draw"] + parts["loss"] == 1.0
        assert rewards[:-1] == [0.0] * (len(rewards) - 1)
        results.append(rewards[-1])
        assert parts["loss"] == (rewards[-1] == -1.0)
    assert {-1.0, 1.0} <= set(results)


def test_max_turns_truncates_without_win_or_loss() -> None:
    world = make_environment_factory(pettingzoo(TICTACTOE, "one two", max_turns=2))()
    world.reset(row(0), 0)
    for move, square in enumerate("04"):
        act(world, **{("one", "two")[move]: square})
    step = act(world, one="1")
    assert (step.terminated, step.truncated) == (False, True)
    assert step.observations == {"one": "xx..o....", "two": "oo..x...."}, "final observations of both agents"
    assert step.parts == {"invalid": 0.0} | {
        f"{name}_{agent}": 0.0 for name in ("win", "draw", "loss") for agent in ("one", "two")
    }


class Musical:
    """A parallel game with three seats: the first terminates after one round, the second is truncated after two."""

    possible_agents = ("seat_0", "seat_1", "seat_2")

    def reset(self, seed: int) -> Any:
        self.rounds, self.agents = 0, list(self.possible_agents)
        return dict.fromkeys(self.agents, 0), {}

    def step(self, moves: Mapping[str, int]) -> Any:
        self.rounds += 1
        before = self.agents
        self.agents = [seat for seat in before if int(seat[-1]) + 1 > self.rounds]
        gone = {seat: seat not in self.agents for seat in before}
        return (
            dict.fromkeys(before, self.rounds),
            dict.fromkeys(before, 0.0),
            {seat: gone[seat] and seat == "seat_0" for seat in before},
            {seat: gone[seat] and seat == "seat_1" for seat in before},
            {},
        )

    def close(self) -> None: ...


def test_agent_that_ended_stays_ended_if_others_are_truncated() -> None:
    from ippo_cli.tasks.environments.pettingzoo import ParallelEnvironment  # needs the package

    config = pettingzoo("three", "one two three", max_turns=3)
    texts = dict.fromkeys(Musical.possible_agents, ActionTexts(2))
    world = ParallelEnvironment(Musical(), config, texts, lambda seat, seen: str(seen))
    world.reset(row(0), 0)
    assert act(world, one="0", two="0", three="0").ended == {"one"}
    act(world, two="0", three="0")
    last = act(world, three="x")
    assert (last.terminated, last.truncated, last.ended) == (False, True, {"one"})
    played = episode(terminated=last.terminated, unfinished=last.unfinished, ended=last.ended)
    assert [name for name in ("one", "two", "three") if played.finished(name)] == ["one"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            pettingzoo("classic/checkers_v1"),
            "^task.env_id=classic/checkers_v1 is not a known game of PettingZoo; use .*classic/chess_v6",
        ),
        (pettingzoo("tictactoe_v3"), "is not a known game of PettingZoo; use classic/tictactoe_v3"),
        (
            pettingzoo("classic/tictactoe_v2"),
            "^task.env_id=classic/tictactoe_v2 is not an available version; use classic/tictactoe_v3$",
        ),
        (pettingzoo("classic/tictactoe"), "names no version; use classic/tictactoe_v3$"),
        (pettingzoo("classic/tictactoe-v1"), "use classic/tictactoe_v3$"),
        (pettingzoo(HANDS, rounds=3), "{'rounds': 3} cannot be created"),
        (pettingzoo(TICTACTOE, "a b c"), "names more agents than the 2 seats of task.env_id=classic/tictactoe_v3"),
        (pettingzoo(TICTACTOE, seat=2), "task.seat=2 is not a seat .*; use one of 0 1 alternate"),
        (pettingzoo(TICTACTOE, seat="second"), "task.seat=second is not a seat"),
        (pettingzoo("classic/chess_v6"), "has observations that cannot be written: the space of player_0"),
        (pettingzoo(CONNECT, form="numbers"), "has 84 numbers, but at most 64 are written; use task.observation=short"),
        (pettingzoo("classic/leduc_holdem_v4", form="words"), "task.observation=words is not available"),
        (pettingzoo(HANDS, illegal="lose"), "task.illegal_move=lose needs a game with a rule for illegal moves"),
    ],
)
def test_unsupported_games_are_rejected(config, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_environment_factory(config)


def test_unknown_game_is_written_as_numbers() -> None:
    world = make_environment_factory(pettingzoo("classic/leduc_holdem_v4", "one two"))()
    story = play(world, row(4), 0, 2)
    assert set(story[0]["one"] if "one" in story[0] else story[0]["two"]) <= set("01 ")
    assert story[-1][3], "it has terminated"
    assert story[-1][2]["one"] == -story[-1][2]["two"] != 0


def test_game_ended_by_opponent_is_restarted() -> None:
    world = make_environment_factory(pettingzoo("classic/leduc_holdem_v4", seat="alternate"))()
    for number in range(200):
        assert list(world.reset(row(number), number)) == ["solo"]
        assert world.total_rewards == {"solo": 0.0}, "rewards of earlier games are discarded"
