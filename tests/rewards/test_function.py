"""Functions of the user's: finding them, and what they may return."""

from __future__ import annotations

from pathlib import Path

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.function import FunctionReward
from ippo_cli.tasks.user_code import load_function

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


def test_a_function_of_a_file_is_called_with_rows_and_each_agents_texts(file: Path) -> None:
    reward = FunctionReward(f"{file}:score")([{"a": 1}, {"a": 2}], {"solo": ("x", "xyz")})
    assert reward == Reward(team=[2.0, 4.0], parts={"n": [1, 1]})


def test_a_path_may_be_relative_to_where_the_command_runs(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert load_function("my reward.py:score").__name__ == "score"


def test_a_function_of_a_module_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judges_of_mine.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    assert FunctionReward("judges_of_mine:score")([{}], {"solo": ["x"]}).team == [2.0]


def test_a_function_may_return_the_contracts_own_type(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from ippo_cli.rewards.contract import Reward\ndef f(examples, responses): return Reward(team=[1.0])"
    )
    assert FunctionReward(f"{tmp_path}/own.py:f")([{}], {"solo": ["x"]}) == Reward(team=[1.0])


def test_what_a_function_is_given_is_its_own_to_change(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(
        "def f(examples, responses):\n n = len(examples); examples.clear(); responses['solo'].clear()\n"
        " return {'team': [0.0] * n}"
    )
    examples, texts = [{"a": 1}], {"solo": ["x"]}
    FunctionReward(f"{tmp_path}/greedy.py:f")(examples, texts)
    assert (examples, texts) == ([{"a": 1}], {"solo": ["x"]})


@pytest.mark.parametrize("returned", ["[1.0]", "1.0", "None", "([1.0], [1.0])", "{'tema': [1.0]}", "{'low': [1.0]}"])
def test_numbers_without_a_name_are_refused_with_the_names_that_there_are(returned: str, tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(f"def f(examples, responses): return {returned}")
    with pytest.raises(TypeError, match="must return a dict with names among team, agent, parts, valid, not"):
        FunctionReward(f"{tmp_path}/bare.py:f")([{}], {"solo": ["x"]})


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("score", "does not say where and what"),
        (":score", "does not say where and what"),
        ("nowhere.py:score", "points to .*nowhere.py, which is no file"),
        ("no_such_module_here:score", "cannot be imported"),
        (".relative:score", "cannot be imported"),
        ("{folder}/good.py:NUMBER", "names no function in .*good.py; it has: Judge dataclass score"),
        ("{folder}/good.py:scor", "names no function in .*good.py; it has: Judge dataclass score"),
        ("{folder}/good.py:", "names no function in"),
        ("{folder}/syntax.py:score", r"cannot be imported \(SyntaxError"),
        (
            "{folder}/raises.py:score",
            r"cannot be imported \(.*raises.py:1: ZeroDivisionError: division by zero\); mend the file",
        ),
        ("raising_module:score", r"cannot be imported \(.*raising_module.py:1: ZeroDivisionError"),
        ("{folder}:score", "cannot be imported"),
    ],
)
def test_a_function_that_cannot_be_found_is_a_mistake_in_the_configuration(
    name: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.py").write_text(FILE)
    (tmp_path / "syntax.py").write_text("def score(:")
    (tmp_path / "raises.py").write_text("1 / 0")
    (tmp_path / "raising_module.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    given = name.format(folder=tmp_path)
    with pytest.raises(ConfigError, match=rule) as raised:
        load_function(given)
    assert raised.value.exit_code == 2
    assert str(raised.value).startswith(f"reward.function={given} ")
    assert "; " in str(raised.value)
