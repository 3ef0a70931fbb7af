"""An error in a user's code is told with the file and line where it arose."""

from __future__ import annotations

from pathlib import Path

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.rewards.function import FunctionReward
from ippo_cli.user_code.errors import format_user_error


def error_of(reward: FunctionReward) -> str:
    try:
        reward([{"answer": 1}], {"solo": [""]})
    except Exception as error:
        return format_user_error(error)
    raise AssertionError("the reward did not fail")


def test_an_error_names_the_file_below_the_folder_and_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "def score(examples, responses):\n    return [row['my_field'] for row in examples]\n"
    )
    monkeypatch.chdir(tmp_path)
    assert error_of(FunctionReward("mine.py:score")) == "mine.py:2: KeyError: 'my_field'"


def test_an_error_in_a_module_that_is_imported_by_name_is_located_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "located_by_name.py").write_text("def score(examples, responses):\n\n    raise ValueError('no')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert error_of(FunctionReward("located_by_name:score")) == f"{tmp_path}/located_by_name.py:3: ValueError: no"


def test_an_error_inside_a_library_is_told_at_the_users_line_that_called_it(tmp_path: Path) -> None:
    file = tmp_path / "calls.py"
    file.write_text("import json\n\ndef score(examples, responses):\n    return json.loads('{')\n")
    assert error_of(FunctionReward(f"{file}:score")).startswith(f"{file}:4: JSONDecodeError: ")


def test_an_error_in_a_function_that_the_reward_calls_is_told_there(tmp_path: Path) -> None:
    file = tmp_path / "deep.py"
    file.write_text("def inner():\n    return 1 / 0\n\ndef score(examples, responses):\n    return inner()\n")
    assert error_of(FunctionReward(f"{file}:score")) == f"{file}:2: ZeroDivisionError: division by zero"


def test_what_no_line_of_the_users_raised_is_told_without_one(tmp_path: Path) -> None:
    file = tmp_path / "returns.py"
    file.write_text("def score(examples, responses):\n    return 3\n")
    assert error_of(FunctionReward(f"{file}:score")).startswith("TypeError: ")


def test_a_file_that_cannot_be_imported_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import math\nmath.nothing\n")
    with pytest.raises(ConfigError, match=r"broken\.py:2: AttributeError"):
        FunctionReward(f"{tmp_path}/broken.py:score")


def test_a_class_of_the_projects_is_told_by_its_words_alone() -> None:
    assert format_user_error(ConfigError("seed=x", "is no number", "use 1")) == "seed=x is no number; use 1"
    assert format_user_error(ValueError("no")) == "ValueError: no"
