"""Users' reward functions: loading, signatures, results and processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spoken import episode

from ippo_cli.config.errors import ConfigError
from ippo_cli.engine import progress
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.function import FunctionReward
from ippo_cli.rewards.response_adapter import ResponseRewardAdapter
from ippo_cli.user_code.load import load_function

FILE = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Judge:  # dataclasses look such annotations' module up by name
    bonus: float

def score(examples, responses):
    return {"team": [len(text) + Judge(1.0).bonus for text in responses["solo"]], "parts": {"n": [1] * len(examples)}}

NUMBER = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my reward.py"
    path.write_text(FILE)
    return path


def test_function_from_file(file: Path) -> None:
    reward = FunctionReward(f"{file}:score")([{"a": 1}, {"a": 2}], {"solo": ("x", "xyz")})
    assert reward == Reward(team=[2.0, 4.0], parts={"n": [1, 1]})


def test_relative_path(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert load_function("my reward.py:score").__name__ == "score"


def test_function_from_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judges_of_mine.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    assert FunctionReward("judges_of_mine:score")([{}], {"solo": ["x"]}).team == [2.0]


def test_function_returns_reward_object(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from ippo_cli.rewards.contract import Reward\ndef f(examples, responses): return Reward(team=[1.0])"
    )
    assert FunctionReward(f"{tmp_path}/own.py:f")([{}], {"solo": ["x"]}) == Reward(team=[1.0])


def test_function_may_modify_arguments(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(
        "def f(examples, responses):\n n = len(examples); examples.clear(); responses['solo'].clear()\n"
        " return {'team': [0.0] * n}"
    )
    examples, texts = [{"a": 1}], {"solo": ["x"]}
    FunctionReward(f"{tmp_path}/greedy.py:f")(examples, texts)
    assert (examples, texts) == ([{"a": 1}], {"solo": ["x"]})


@pytest.mark.parametrize("returned", ["[1.0]", "1.0", "None", "([1.0], [1.0])", "{'tema': [1.0]}", "{'low': [1.0]}"])
def test_unnamed_numbers_raise(returned: str, tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(f"def f(examples, responses): return {returned}")
    with pytest.raises(
        TypeError,
        match="must return a dict with keys among team, agent, team_by_step, agent_by_turn, parts, valid, not",
    ):
        FunctionReward(f"{tmp_path}/bare.py:f")([{}], {"solo": ["x"]})


@pytest.mark.parametrize(
    ("returned", "works"), [("1.0", "float; set reward.per_sample=true"), ("[1.0]", r"list; return {'team': \[...\]}")]
)
def test_hint_for_bare_number_or_list(returned: str, works: str, tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(f"def f(examples, responses): return {returned}")
    with pytest.raises(TypeError, match=works):
        FunctionReward(f"{tmp_path}/bare.py:f")([{}], {"solo": ["x"]})


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("score", "is not an entry point of ippo.rewards; .* use your own as path.py:name"),
        (":score", "is not an entry point of ippo.rewards; .* use your own as path.py:name"),
        ("nowhere.py:score", "points to .*nowhere.py, which is not a file"),
        ("no_such_module_here:score", "cannot be imported"),
        (".relative:score", "cannot be imported"),
        ("{folder}/good.py:NUMBER", "names no function in .*good.py; it has: Judge dataclass score"),
        ("{folder}/good.py:scor", "names no function in .*good.py; it has: Judge dataclass score"),
        ("{folder}/good.py:", "names no function in"),
        ("{folder}/syntax.py:score", r"cannot be imported \(SyntaxError"),
        (
            "{folder}/raises.py:score",
            r"cannot be imported \(.*raises.py:1: ZeroDivisionError: division by zero\); fix the error in that file",
        ),
        ("{folder}/leaves.py:score", r"cannot be imported \(.*leaves.py:2: SystemExit: 0\)"),
        ("leaving_module:score", r"cannot be imported \(.*leaving_module.py:2: SystemExit: 0\)"),
        ("raising_module:score", r"cannot be imported \(.*raising_module.py:1: ZeroDivisionError"),
        ("{folder}:score", "cannot be imported"),
    ],
)
def test_missing_function_raises_config_error(
    name: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.py").write_text(FILE)
    (tmp_path / "syntax.py").write_text("def score(:")
    (tmp_path / "raises.py").write_text("1 / 0")
    (tmp_path / "raising_module.py").write_text("1 / 0")
    for name_of_script in ("leaves.py", "leaving_module.py"):
        (tmp_path / name_of_script).write_text("import sys\nsys.exit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    given = name.format(folder=tmp_path)
    with pytest.raises(ConfigError, match=rule) as raised:
        load_function(given)
    assert raised.value.exit_code == 2
    assert str(raised.value).startswith(f"reward.function={given} ")
    assert "; " in str(raised.value)


EPISODIC = """
def score(examples, responses, episodes):
    def lengths(name):
        return [[float(len(turn.completion.text)) for turn in one.of(name)] for one in episodes]
    by_turn = {name: lengths(name) for name in responses}
    paid = [[sum(step.values()) for step in one.rewards] for one in episodes]
    episodes[0].turns.clear()  # its own to change
    return {"agent_by_turn": by_turn, "team_by_step": paid}
"""


def test_function_with_episodes_parameter(tmp_path: Path) -> None:
    (tmp_path / "episodic.py").write_text(EPISODIC)
    function = FunctionReward(f"{tmp_path}/episodic.py:score")
    reward = ResponseRewardAdapter(function, ["low", "high"], with_episodes=function.with_episodes)
    talk = episode(("low", 0, "a"), ("high", 1, "bb"), ("low", 2, "ccc"), rewards=[{}, {"low": 1.0, "high": 2.0}, {}])
    alone = episode(("low", 0, "dddd"))
    found = reward([talk, alone])
    assert found.agent_by_turn == {"low": [[1.0, 3.0], [4.0]], "high": [[2.0], []]}
    assert found.team_by_step == [[0, 3.0, 0], [0]]
    assert len(talk.turns) == 3


def test_response_is_text_of_last_turn() -> None:
    seen: list[Any] = []

    def noted(examples: Any, responses: Any) -> Reward:
        seen.append((examples, responses))
        return Reward(team=[0.0] * len(examples))

    talk = episode(("low", 0, "a"), ("high", 1, "b"), ("low", 2, "c"), example={"n": 1})
    ResponseRewardAdapter(noted, ["high", "low", "third"])([talk, episode(("high", 0, "d"), example={"n": 2})])
    examples, responses = seen[0]
    assert examples == [{"n": 1}, {"n": 2}]
    assert responses == {"high": ["b", "d"], "low": ["c", ""], "third": ["", ""]}
    assert list(responses) == ["high", "low", "third"], "in the task's order of agents, not in that of their turns"


@pytest.mark.parametrize("parameters", ["episodes", "examples", "examples, responses, more", "examples, *, responses"])
def test_wrong_signature_raises(parameters: str, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(f"def score({parameters}): return 1")
    with pytest.raises(ConfigError, match=r"cannot be called as function\(examples, responses\) \(.*\); accept these"):
        FunctionReward(f"{tmp_path}/other.py:score")


@pytest.mark.parametrize("parameters", ["rows, texts", "*args", "examples, responses, k=1", "rows, texts, **more"])
def test_compatible_signatures(parameters: str, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(f"def score({parameters}): return {{'team': [1.0]}}")
    function = FunctionReward(f"{tmp_path}/other.py:score")
    assert not function.with_episodes
    assert function([{}], {"solo": ["x"]}).team == [1.0]


OWN = """
import asyncio, os, time
running = most = 0

def plain(example, responses):
    if example["n"] == 1:
        raise ValueError("not this one")
    if example["n"] == 2:
        return {"team": 2.0, "agent": {"solo": 0.5}, "parts": {"long": len(responses["solo"])}}
    return example["n"]

def describe(example, responses, episode):
    return {"agent_by_turn": {"solo": [float(len(turn.completion.text)) for turn in episode.of("solo")]}}

async def waiting(example, responses):
    global running, most
    running, most = running + 1, max(most, running + 1)
    await asyncio.sleep(3600 if example["n"] == 1 else 0.01)
    running -= 1
    return {"team": example["n"], "parts": {"most": most}}

async def going_on(example, responses):
    from ippo_cli.engine import progress
    return float(progress.has_granted_time())

async def together(examples, responses):
    await asyncio.sleep(0)
    return {"team": [example["n"] for example in examples]}

def stuck(example, responses):
    if example["n"] == 1:
        time.sleep(3600)
    if example["n"] == 2:
        os._exit(0)
    return float(example["n"])

def batch(examples, responses):
    return {"team": [float(len(text)) for text in responses["solo"]]}
"""
ROWS = [{"n": row} for row in range(4)]
TEXTS = {"solo": ["", "a", "bb", "ccc"]}


@pytest.fixture
def own(tmp_path: Path) -> Any:
    (tmp_path / "own.py").write_text(OWN)
    made: list[FunctionReward] = []

    def build(name: str, **keys: Any) -> FunctionReward:
        made.append(FunctionReward(f"{tmp_path}/own.py:{name}", **keys))
        return made[-1]

    yield build
    for one in made:
        one.close()


def test_per_sample_function(own: Any) -> None:
    found = own("plain", per_sample=True)(ROWS, TEXTS)
    assert str(found.failures) == "{1: ValueError('not this one')}"
    assert [found.team[row] for row in (0, 2, 3)] == [0.0, 2.0, 3.0]
    assert (found.agent["solo"][2], found.parts["long"][2]) == (0.5, 2)


@pytest.mark.parametrize("process", [False, True])
def test_per_sample_function_with_episode(process: bool, own: Any) -> None:
    function = own("describe", per_sample=True, process=process)
    talk = [episode(("solo", 0, "a"), ("solo", 1, "bbb")), episode(("solo", 0, "cc"))]
    found = ResponseRewardAdapter(function, ["solo"], with_episodes=function.with_episodes)(talk)
    assert found.agent_by_turn == {"solo": [[1.0, 3.0], [2.0]]}


def test_async_concurrency_and_timeout(own: Any) -> None:
    found = own("waiting", per_sample=True, concurrency=2, timeout_s=0.5)(ROWS, TEXTS)
    assert [found.team[row] for row in (0, 2, 3)] == [0, 2, 3]
    assert max(found.parts["most"][row] for row in (0, 2, 3)) == 2
    assert [str(error) for error in found.failures.values()] == ["the call took longer than 0.5 s"]
    assert own("together")(ROWS, TEXTS).team == [0, 1, 2, 3]


def test_timeout_grants_time_to_watchdog(own: Any) -> None:
    before = progress.progress_count()
    assert own("going_on", per_sample=True, timeout_s=5.0)(ROWS, TEXTS).team == [1.0, 1.0, 1.0, 1.0]
    assert own("going_on", per_sample=True)(ROWS, TEXTS).team == [0.0, 0.0, 0.0, 0.0]
    assert progress.progress_count() - before >= 8


def test_killed_process_fails_only_its_row(own: Any) -> None:
    found = own("stuck", per_sample=True, process=True, timeout_s=1.0, concurrency=2)(ROWS, TEXTS)
    assert [found.team[row] for row in (0, 3)] == [0.0, 3.0]
    assert sorted(found.failures) == [1, 2]
    assert "longer than 1 s" in str(found.failures[1])
    assert own("batch", process=True)(ROWS, TEXTS).team == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("name", "keys", "rule"),
    [
        ("batch", {"timeout_s": 1.0}, "reward.timeout_s=1 cannot stop a call that runs in the training process; set"),
        ("batch", {"concurrency": 2}, "reward.concurrency=2 has no effect"),
        ("plain", {"concurrency": 2, "per_sample": True}, "reward.concurrency=2 has no effect"),
        ("together", {"process": True}, "reward.process=true does not support async functions"),
    ],
)
def test_keys_without_effect_raise(own: Any, name: str, keys: Any, rule: str) -> None:
    with pytest.raises(ConfigError) as raised:
        own(name, **keys)
    assert str(raised.value).startswith(rule)


@pytest.mark.parametrize(
    "parameters",
    [
        "prompts, completions, **kwargs",
        "completions, ground_truth",
        "data_source, solution_str",
        "completions, prompts",
    ],
)
def test_signature_of_another_library(parameters: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"def score({parameters}):\n    return [0.0]\n")
    with pytest.raises(ConfigError, match=r"the signature of another library; here .* function\(examples, responses\)"):
        FunctionReward(f"{tmp_path / 'mine.py'}:score")
