"""Gymnasium environments as text."""

from __future__ import annotations

from contextlib import suppress

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from making import INVALID, act, row
from making import gymnasium as configured

from ippo_cli.config.errors import ConfigError
from ippo_cli.tasks.environments.build import make_environment_factory, newer_environment

FROZEN = {"is_slippery": False}


def test_lake_accepts_names_letters_and_numbers() -> None:
    world = make_environment_factory(configured("FrozenLake-v1", **FROZEN))()
    assert world.reset(row(5), 0) == {"solo": "00"}
    observation = [act(world, solo=text) for text in ("down", "D", "2", " right ", "1", "r")]
    assert [step.observations["solo"] for step in observation] == ["10", "20", "21", "22", "32", "33"]
    assert [step.rewards["solo"] for step in observation] == [0, 0, 0, 0, 0, 1]
    assert [step.terminated for step in observation] == [False] * 5 + [True]
    assert observation[-1].parts == {"invalid": 0.0}


def test_invalid_action_has_penalty_and_changes_nothing() -> None:
    world = make_environment_factory(configured("FrozenLake-v1", **FROZEN))()
    world.reset(row(5), 0)
    act(world, solo="r")
    for number, text in enumerate(("go right", "", "7"), 1):
        step = act(world, solo=text)
        assert step.observations == {"solo": "01"}
        assert step.rewards == {"solo": INVALID}
        assert (step.terminated, step.truncated) == (False, False)
        assert step.parts == {"invalid": float(number)}
    assert act(world, solo="r").observations == {"solo": "02"}
    world.reset(row(6), 0)
    assert act(world, solo="r").parts == {"invalid": 0.0}, "the count restarts per episode"


def test_max_turns_truncates_and_counts_invalid_actions() -> None:
    world = make_environment_factory(configured("CliffWalking-v1", max_turns=3))()
    world.reset(row(5), 0)
    steps = [act(world, solo=text) for text in ("up", "?", "up")]
    assert [(step.terminated, step.truncated) for step in steps] == [(False, False), (False, False), (False, True)]
    assert steps[-1].observations == {"solo": "10"}, "the final observation for the value of a truncated episode"


def test_termination_in_last_turn_is_not_truncation() -> None:
    world = make_environment_factory(configured("FrozenLake-v1", max_turns=2, desc=["SFG"], **FROZEN))()
    world.reset(row(0), 0)
    act(world, solo="r")
    step = act(world, solo="r")
    assert (step.terminated, step.truncated) == (True, False)


def test_environment_limit_truncates_without_max_turns() -> None:
    world = make_environment_factory(configured("FrozenLake-v1", max_turns=None, **FROZEN))()
    world.reset(row(0), 0)
    steps = [act(world, solo="left") for _ in range(100)]
    assert [step.truncated for step in steps] == [False] * 99 + [True]
    world.reset(row(0), 0)
    assert not act(world, solo="left").truncated, "the limit restarts per episode"


def test_example_seeds_the_start_and_seed_later_random_numbers() -> None:
    taxi = make_environment_factory(configured("Taxi-v4"))()
    begins = [[taxi.reset(row(example), seed)["solo"] for seed in range(5)] for example in range(8)]
    assert all(len(set(line)) == 1 for line in begins)
    assert len({line[0] for line in begins}) > 4
    lake = make_environment_factory(configured("FrozenLake-v1"))()
    paths = []
    for seed in range(12):
        lake.reset(row(0), seed)
        paths.append(tuple(act(lake, solo="down").observations["solo"] for _ in range(2)))
    assert len(set(paths)) > 2


@pytest.mark.parametrize(
    ("env_id", "form", "arguments"),
    [
        ("FrozenLake-v1", "short", {}),
        ("FrozenLake-v1", "words", {}),
        ("FrozenLake-v1", "numbers", {}),
        ("FrozenLake8x8-v1", "short", {}),
        ("CliffWalking-v1", "short", {}),
        ("CliffWalking-v1", "words", {}),
        ("CliffWalkingSlippery-v1", "numbers", {}),
        ("Taxi-v4", "short", {}),
        ("Taxi-v4", "words", {}),
        ("FrozenLake-v1", "short", {"desc": ["S" + "F" * 12] + ["F" * 13] * 10 + ["F" * 12 + "G"]}),
    ],
)
def test_every_state_has_a_unique_text(env_id: str, form: str, arguments: dict) -> None:
    world = make_environment_factory(configured(env_id, form, **arguments))()
    assert isinstance(world.env.observation_space, spaces.Discrete)
    states = range(int(world.env.observation_space.n))
    texts = [world.describe(state) for state in states]
    assert len(set(texts)) == len(states)
    if form == "short":
        assert max(map(len, texts)) <= 5


def test_blackjack_text_has_all_information() -> None:
    short, words = (make_environment_factory(configured("Blackjack-v1", form))() for form in ("short", "words"))
    states = [(total, dealer, ace) for total in range(4, 22) for dealer in range(1, 11) for ace in (0, 1)]
    for world in (short, words):
        assert len({world.describe(state) for state in states}) == len(states)
    assert short.describe((17, 10, 1)) == "17a 10"
    assert short.describe((9, 1, 0)) == "9 1"
    assert words.describe((17, 1, 1)) == (
        "You have 17 with an ace that counts 11. The dealer shows an ace. Actions: stick, hit."
    )


def test_taxi_text_has_position_passenger_and_destination() -> None:
    world = make_environment_factory(configured("Taxi-v4", "words"))()
    state = world.env.unwrapped.encode(2, 3, 4, 1)
    result = world.describe(state)
    assert "row 2, column 3" in result
    assert "| : : :*: |" in result, "the third row of the map"
    assert "is in the taxi and wants to get to green" in result
    assert make_environment_factory(configured("Taxi-v4"))().describe(state) == "23TG"


class Gadget(gymnasium.Env):
    """An environment without a known text format."""

    action_space = spaces.Discrete(3, start=-1)
    observation_space = spaces.Dict(
        {
            "dial": spaces.Box(-1.0, 1.0, (2,)),
            "lamps": spaces.MultiBinary(3),
            "pair": spaces.Tuple((spaces.Discrete(4), spaces.MultiDiscrete([2, 3]))),
        }
    )

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: int) -> tuple:
        return self._seen(), float(action), False, False, {}

    def _seen(self) -> dict:
        return {
            "dial": np.array([0.12345, -1.0], np.float32),
            "lamps": np.array([1, 0, 1], np.int8),
            "pair": (np.int64(3), np.array([1, 2])),
        }


class Picture(Gadget):
    observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)


class Steered(Gadget):
    action_space = spaces.Box(-1.0, 1.0, (2,))


for kind in (Gadget, Picture, Steered):
    gymnasium.register(f"{kind.__name__}-v0", kind)


def test_unknown_environment_is_written_as_numbers() -> None:
    world = make_environment_factory(configured("Gadget-v0"))()
    assert world.reset(row(0), 0) == {"solo": "dial=0.123 -1 lamps=1 0 1 pair=3 1 2"}
    assert act(world, solo="-1").rewards == {"solo": -1.0}
    assert act(world, solo="2").parts == {"invalid": 1.0}
    assert world.actions() == {"solo": ["-1", "0", "1"]}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            configured("FrozenLake-v7"),
            "^task.env_id=FrozenLake-v7 is not an available version; use FrozenLake-v1$",
        ),
        (configured("Taxi-v3"), "use Taxi-v4$"),
        (configured("FrozenLake"), "^task.env_id=FrozenLake names no version; use FrozenLake-v1$"),
        (
            configured("frozenlak-v1"),
            "^task.env_id=frozenlak-v1 is not a known environment of Gymnasium; use FrozenLake.*-v1.*; python -c",
        ),
        (configured("nowhere:Lake-v0"), "cannot be created .ModuleNotFoundError: No module named 'nowhere'"),
        (configured("FrozenLake-v1", is_wet=True), "task.environment_args={'is_wet': True} cannot be created"),
        (configured("FrozenLake-v1", map_name=None), "draws a different map in every process; set"),
        (configured("Steered-v0"), "has actions that are not discrete"),
        (configured("Picture-v0"), "has 12288 numbers, but at most 64 are written"),
        (configured("Gadget-v0", "words"), "task.observation=words is not available for task.env_id=Gadget-v0"),
    ],
)
def test_unsupported_environments_are_rejected(config, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_environment_factory(config)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("env_id", ["CartPole-v0", "FrozenLake-v0", "FrozenLake", "Blackjack-v1"])
def test_gymnasium_prints_no_warnings(env_id: str) -> None:
    with suppress(ConfigError):
        make_environment_factory(configured(env_id))().reset(row(0), 0)


def test_newer_environment_finds_newest_version() -> None:
    assert newer_environment(configured("CartPole-v0")) == "CartPole-v1"
    assert newer_environment(configured("CartPole-v1")) is None
    assert newer_environment(configured("Gadget-v0")) is None


def test_wrapper_that_changes_observations_disables_known_text() -> None:
    class Doubled(gymnasium.ObservationWrapper):
        observation_space = spaces.Discrete(32)

        def observation(self, observation: int) -> int:
            return 2 * observation

    gymnasium.register("DoubledLake-v0", lambda **arguments: Doubled(gymnasium.make("FrozenLake-v1", **arguments)))
    world = make_environment_factory(configured("DoubledLake-v0", **FROZEN))()
    world.reset(row(0), 0)
    assert act(world, solo="2").observations == {"solo": "2"}
    assert act(world, solo="right").parts == {"invalid": 1.0}
