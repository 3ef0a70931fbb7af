"""Format errors of user code with file and line."""

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


def test_error_names_relative_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "def score(examples, responses):\n    return [row['my_field'] for row in examples]\n"
    )
    monkeypatch.chdir(tmp_path)
    assert error_of(FunctionReward("mine.py:score")) == "mine.py:2: KeyError: 'my_field'"


def test_error_in_imported_module_names_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "located_by_name.py").write_text("def score(examples, responses):\n\n    raise ValueError('no')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert error_of(FunctionReward("located_by_name:score")) == f"{tmp_path}/located_by_name.py:3: ValueError: no"


def test_error_in_library_names_calling_user_line(tmp_path: Path) -> None:
    file = tmp_path / "calls.py"
    file.write_text("import json\n\ndef score(examples, responses):\n    return json.loads('{')\n")
    assert error_of(FunctionReward(f"{file}:score")).startswith(f"{file}:4: JSONDecodeError: ")


def test_error_in_called_function_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "deep.py"
    file.write_text("def inner():\n    return 1 / 0\n\ndef score(examples, responses):\n    return inner()\n")
    assert error_of(FunctionReward(f"{file}:score")) == f"{file}:2: ZeroDivisionError: division by zero"


def test_error_without_user_line_has_no_location(tmp_path: Path) -> None:
    file = tmp_path / "returns.py"
    file.write_text("def score(examples, responses):\n    return 3\n")
    assert error_of(FunctionReward(f"{file}:score")).startswith("TypeError: ")


def test_import_error_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import math\nmath.nothing\n")
    with pytest.raises(ConfigError, match=r"broken\.py:2: AttributeError"):
        FunctionReward(f"{tmp_path}/broken.py:score")


def test_own_error_class_is_formatted_without_class_name() -> None:
    assert format_user_error(ConfigError("seed=x", "is no number", "use 1")) == "seed=x is no number; use 1"
    assert format_user_error(ValueError("no")) == "ValueError: no"
