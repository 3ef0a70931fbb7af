"""Code of the user's that changed between a run's start and its resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ippo_cli.config.load import load_config
from ippo_cli.training.folder import take_effect
from ippo_cli.training.input_files import changed_inputs, input_files, record_inputs

REWARD = "import helper\n\ndef score(examples, responses):\n    return helper.value\n"
Edit = Callable[[Path], object]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my reward.py").write_text(REWARD)
    (tmp_path / "helper.py").write_text("from other import value\n")
    (tmp_path / "other.py").write_text("import helper\nvalue = 1\n")
    (tmp_path / "prompts.py").write_text("def low(row):\n    return ''\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(root: Path) -> dict[str, str]:
    config = load_config(
        [
            "reward=function",
            f"reward.function='{root}/my reward.py:score'",
            f"task.agents.low.template={root}/prompts.py:low",
            "task.agents.high.template='see nothing.py:high'",
            "tracker.callback=helper:call",
        ]
    )
    return {file.name: key for file, key in input_files(config).items()}


def test_named_files_and_their_neighbours_are_inputs(files: Path) -> None:
    keys = found(files)
    assert set(keys) == {"my reward.py", "helper.py", "other.py", "prompts.py"}
    assert keys["my reward.py"] == "reward.function"
    assert keys["prompts.py"] == "task.agents.low.template"


@pytest.mark.parametrize(
    "edit",
    [
        lambda file: file.write_text("changed = True\n"),
        lambda file: file.unlink(),
    ],
)
@pytest.mark.parametrize("name", ["my reward.py", "other.py"])
def test_a_changed_file_is_named_until_the_run_has_started_with_it(edit: Edit, name: str, files: Path) -> None:
    config = load_config(["reward=function", f"reward.function='{files}/my reward.py:score'"])
    inputs, folder = input_files(config), files / "run"
    folder.mkdir()
    assert changed_inputs(folder, inputs) == []  # a run of an earlier version
    record_inputs(folder, inputs, resumed=False)
    assert changed_inputs(folder, inputs) == []
    edit(files / name)
    (line,) = changed_inputs(folder, inputs)
    assert line.startswith(f"{files / name} (reward.function) has changed since this run was started")
    assert changed_inputs(folder, inputs, ("task.",)) == []
    record_inputs(folder, inputs, resumed=True)
    assert changed_inputs(folder, inputs) == [line]  # no checkpoint was loaded yet
    take_effect(folder)
    assert changed_inputs(folder, inputs) == []
