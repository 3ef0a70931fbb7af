"""User environments: conversion of values, and rejected returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from making import act, own, random_turns, row
from spoken import episode

from ippo_cli.config.errors import ConfigError
from ippo_cli.rewards.contract import Reward, validate_reward
from ippo_cli.tasks.environment import Action
from ippo_cli.tasks.environments.build import make_environment_factory

pytestmark = pytest.mark.needs_no_package
GUESS = '''
made = []

class Guess:
    """Guess a digit; the observation is yes, higher or lower."""

    def __init__(self, digits):
        self.digits = digits
        self.closed = False
        made.append(self)

    def reset(self, seed):
        self.number = seed % self.digits
        return "guess", {}

    def step(self, action):
        guess = int(action)
        right = guess == self.number
        answer = "yes" if right else "higher" if guess < self.number else "lower"
        info = {"distance": abs(guess - self.number), "note": "text", "right": right, "seen": [], "who": None}
        return answer, float(right), right, False, info

    def actions(self):
        return [str(digit) for digit in range(self.digits)]

    def close(self):
        self.closed = True


def make(digits=10):
    if digits < 2:
        raise ValueError("two digits at least")
    return Guess(digits)


def nothing():
    return object()


class Relay:
    """`one` says a word, `two` has to repeat it."""

    def reset(self, seed):
        return {"one": f"word {seed}"}, {}

    def step(self, action):
        if "one" in action:
            self.word = action["one"]
            return {"two": f"said: {self.word}"}, {}, False, False, {}
        paid = float(action["two"] == self.word)
        return {"one": "end", "two": "end"}, {"one": paid, "two": paid}, True, False, {"kept": paid}

    def close(self):
        pass


class Odd(Relay):
    """Returns fixed values from `reset` and `step`."""

    def __init__(self, begin=None, then=None):
        self.begin, self.then = begin, then

    def reset(self, seed):
        return ("go", {}) if self.begin is None else self.begin

    def step(self, action):
        return self.then


def second():
    return Odd(({"two": "go"}, {}), ({"two": "x"}, {}, False, False, {}))


def begins(kind):
    return Odd({"text": "go", "number": (3, {}), "nobody": ({}, {}), "stranger": ({"three": "x"}, {})}[kind])


def goes(kind):
    return Odd(then={
        "gym": ("x", 0.0, False, {}), "number": (3, 0.0, False, False, {}), "silent": ({}, 0.0, False, False, {}),
        "reward": ("x", "much", False, False, {}),
        "stranger": ("x", {"three": 1.0}, False, False, {}), "long": ("x", 0.0, False, False, {}),
        "left": ("x", 0.0, {"three": True}, False, {}),
    }[kind])


class Named(Relay):
    """Numbers in info with reserved or invalid metric names."""

    def step(self, action):
        info = {"score": 1, "failed_fraction": 2, "time/step": 3, "win rate": 4, "kept.2-x": 5, 6: 7}
        return {}, {}, True, False, info


class Leaving(Relay):
    """Returns `terminated` and `truncated` by agent."""

    def __init__(self, ends):
        self.ends = iter(ends)

    def step(self, action):
        terminated, truncated = next(self.ends)
        return {"one": "go", "two": "go"}, {}, terminated, truncated, {}


class Listening(Relay):
    """Receives whether answers were truncated."""

    def reset(self, seed):
        self.received = []
        return ("go", {}) if seed else super().reset(seed)

    def step(self, action, finished):
        self.received.append((action, finished))
        whole = finished if isinstance(finished, bool) else all(finished.values())
        return {"one": "go"} if isinstance(action, dict) else "go", {}, whole, not whole, {}
'''


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "my_env.py"
    path.write_text(GUESS)
    return str(path)


def test_single_agent_has_text_and_number(file: str) -> None:
    world = make_environment_factory(own(f"{file}:make", digits=7))()
    assert world.reset(row(12), 0) == {"solo": "guess"}
    step = act(world, solo="3")
    assert (step.observations, step.rewards, step.terminated) == ({"solo": "higher"}, {"solo": 0.0}, False)
    assert step.parts == {"distance": 2.0, "right": 0.0}, "only numbers of info"
    step = act(world, solo="5")
    assert (step.observations, step.rewards, step.terminated) == ({"solo": "yes"}, {"solo": 1.0}, True)


def test_several_agents_act_by_observation_keys(file: str) -> None:
    world = make_environment_factory(own(f"{file}:Relay", "one two"))()
    assert world.reset(row(5), 0) == {"one": "word 5"}
    step = act(world, one="tree")
    assert (step.observations, step.rewards) == ({"two": "said: tree"}, {})
    step = act(world, two="tree")
    assert (step.rewards, step.terminated, step.parts) == ({"one": 1.0, "two": 1.0}, True, {"kept": 1.0})
    assert step.observations == {"one": "end", "two": "end"}


def test_environments_are_separate_objects_and_are_closed(file: str) -> None:
    make = make_environment_factory(own(f"{file}:make"))
    worlds = [make() for _ in range(3)]
    assert len({id(world.environment) for world in worlds}) == 3
    worlds[1].close()
    assert [world.environment.closed for world in worlds] == [False, True, False]


def test_max_turns_truncates(file: str) -> None:
    world = make_environment_factory(own(f"{file}:goes", max_turns=3, kind="long"))()
    for _ in range(2):
        world.reset(row(0), 0)
        assert [act(world, solo="x").truncated for _ in range(3)] == [False, False, True]


def test_max_turns_counts_the_agent_with_most_turns(file: str) -> None:
    world = make_environment_factory(own(f"{file}:second", "one two", max_turns=2))()
    world.reset(row(0), 0)
    assert [act(world, two="x").truncated for _ in range(2)] == [False, True]


def test_info_numbers_get_valid_metric_names(file: str) -> None:
    world = make_environment_factory(own(f"{file}:Named", "one two"))()
    world.reset(row(0), 0)
    parts = act(world, one="x").parts
    assert parts == {
        "info_score": 1.0,
        "info_failed_fraction": 2.0,
        "time_step": 3.0,
        "win_rate": 4.0,
        "kept.2-x": 5.0,
        "6": 7.0,
    }
    given = Reward(team=[0.0], parts={name: [value] for name, value in parts.items()})
    assert set(validate_reward(given, ["solo"], [episode(("solo", 0, "x"))]).parts) == set(parts), (
        "validation accepts the names"
    )


@pytest.mark.parametrize(
    ("ends", "over", "finished"),
    [
        ([({"one": True}, {}), ({"two": True}, False)], "terminated", ["one", "two"]),
        ([({"one": True}, {}), ({"one": True, "two": False}, {"two": True})], "terminated", ["one"]),
        ([({}, {"one": True}), (True, False)], "terminated", ["two"]),
        ([({"one": True}, {}), (False, True)], "terminated", ["one"]),
        ([({}, {"one": True}), (False, {"two": True})], "truncated", []),
        ([({"one": True}, {}), ({}, {})], "truncated", ["one"]),  # at max_turns
        ([({"one": False, "two": False}, {"one": False}), (False, False)], "truncated", []),
    ],
)
def test_terminated_and_truncated_by_agent(file: str, ends: list[Any], over: str, finished: list[str]) -> None:
    world = make_environment_factory(own(f"{file}:Leaving", "one two", max_turns=2, ends=ends))()
    world.reset(row(0), 0)
    first, last = (act(world, one="x", two="x") for _ in range(2))
    assert not first.terminated
    assert not first.truncated
    assert [name for name in ("terminated", "truncated") if getattr(last, name)] == [over]
    played = episode(terminated=last.terminated, unfinished=last.unfinished, ended=last.ended)
    assert [name for name in ("one", "two") if played.finished(name)] == finished


def test_step_receives_finished_if_it_has_the_parameter(file: str) -> None:
    world = make_environment_factory(own(f"{file}:Listening", "one two"))()
    world.reset(row(0), 0)
    step = world.step({"one": Action("ye", finished=False)})
    assert (step.terminated, step.truncated, step.ended) == (False, True, frozenset())
    assert world.environment.received == [({"one": "ye"}, {"one": False})]
    alone = make_environment_factory(own(f"{file}:Listening"))()
    alone.reset(row(1), 0)
    step = alone.step({"solo": Action("yes", finished=True)})
    assert (step.terminated, step.ended) == (True, {"solo"})
    assert alone.environment.received == [("yes", True)]


def test_errors_inside_are_raised(file: str) -> None:
    world = make_environment_factory(own(f"{file}:make"))()
    world.reset(row(0), 0)
    with pytest.raises(ValueError, match="invalid literal for int"):
        act(world, solo="seven")
    assert world.reset(row(0), 0) == {"solo": "guess"}


def test_legal_actions_come_from_actions_method(file: str) -> None:
    pairs = random_turns(own(f"{file}:make", digits=3), 0, 40)
    assert {answer for _, answer in pairs} == {"0", "1", "2"}
    assert {result for result, _ in pairs} == {"guess", "higher", "lower"}
    assert random_turns(own(f"{file}:Relay", "one two"), 0, 5) == []


@pytest.mark.parametrize(
    ("function", "kind", "agents", "message"),
    [
        ("begins", "text", "solo", r"reset must return \(observation, info\), not a dict"),
        ("begins", "number", "solo", "reset must return texts as observations, not a int"),
        ("begins", "nobody", "solo", "reset must return an observation for at least one agent"),
        ("begins", "stranger", "solo", "reset names 'three', but task.agents are solo"),
        ("goes", "gym", "solo", r"must return \(observation, reward, terminated, truncated, info\), not a tuple of 4"),
        ("goes", "number", "solo", "step must return texts as observations, not a int"),
        ("goes", "silent", "solo", "step must return an observation for at least one agent until the episode ends"),
        ("goes", "reward", "solo", "could not convert string to float: 'much'"),
        ("goes", "stranger", "solo", "step names 'three'"),
        ("goes", "left", "solo", "step names 'three'"),
        ("goes", "long", "one two", "reset must return a dict from agent to text: the task has several agents"),
    ],
)
def test_invalid_returns_are_rejected(file: str, function: str, kind: str, agents: str, message: str) -> None:
    if (function, kind) == ("begins", "text"):
        Path(file).write_text(GUESS.replace('"text": "go"', '"text": {"solo": "go"}'))
    world = make_environment_factory(own(f"{file}:{function}", agents, kind=kind))()
    with pytest.raises((TypeError, ValueError), match=message):  # noqa: PT012
        world.reset(row(0), 0)
        act(world, **dict.fromkeys(agents.split(), "x"))


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("{file}:makes", {}, "task.environment=.*:makes names no function in .*; it has: .*make"),
        (
            "{file}",
            {},
            "task.environment=.*my_env.py names a file without a function or class; use task.*my_env.py:Guess or ",
        ),
        ("/nowhere/my_env.py:make", {}, "task.environment=/nowhere/my_env.py:make points to .* which is not a file"),
        ("{file}:make", {"digits": 1}, r"cannot be created \(.*my_env.py:32: ValueError: two digits at least\)"),
        ("{file}:make", {"letters": 1}, r"cannot be created \(.*unexpected keyword argument 'letters'"),
        ("{file}:nothing", {}, "returned a object, which has no reset, step"),
    ],
)
def test_invalid_functions_are_rejected(file: str, name: str, arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        make_environment_factory(own(name.format(file=file), **arguments))
    assert "reward.function" not in str(refused.value)
    assert refused.value.exit_code == 2


def test_environment_without_close(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "class Plain:\n    def reset(self, seed):\n        return 'go', {}\n\n    def step(self, action):\n"
        "        return 'end', 1.0, True, False, {}\n"
    )
    world = make_environment_factory(own(f"{tmp_path / 'plain.py'}:Plain"))()
    assert world.reset(row(3), 3)
    world.close()
