"""Code and data files that change between a run's start and its resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.runs.folder import activate_resumed_config
from ippo_cli.runs.input_files import INPUTS, InputSources, changed_input_warnings, input_files, record_inputs

REWARD = "import helper\n\ndef score(examples, responses):\n    return helper.value\n"
Edit = Callable[[Path], object]


def load_data(source: str, *overrides: str) -> InputSources:
    values = ("task=jsonl", f"task.train='{source}'", "task.eval=null", "task.eval_share=0.5", "actor=full")
    return input_files(load_config([*values, "actor.model=x", "task.agents.solo.answer='{q}'", *overrides]))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my reward.py").write_text(REWARD)
    (tmp_path / "helper.py").write_text("from other import value\n")
    (tmp_path / "other.py").write_text("import helper\nvalue = 1\n")
    (tmp_path / "steps.py").write_text("def halve(score):\n    return score / 2\n")
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
            f"reward.processor=[scale,'{root}/steps.py:halve']",
        ]
    )
    return {file.name: found.key for file, found in input_files(config).items()}


def test_named_files_and_siblings_are_inputs(files: Path) -> None:
    keys = found(files)
    assert set(keys) == {"my reward.py", "helper.py", "other.py", "prompts.py", "steps.py"}
    assert keys["my reward.py"] == "reward.function"
    assert keys["steps.py"] == "reward.processor"
    assert keys["prompts.py"] == "task.agents.low.template"


@pytest.mark.parametrize(
    "edit",
    [
        lambda file: file.write_text("changed = True\n"),
        lambda file: file.unlink(),
    ],
)
@pytest.mark.parametrize("name", ["my reward.py", "other.py"])
def test_changed_file_warns_until_the_run_has_started_with_it(edit: Edit, name: str, files: Path) -> None:
    config = load_config(["reward=function", f"reward.function='{files}/my reward.py:score'"])
    inputs, folder = input_files(config), files / "run"
    folder.mkdir()
    assert changed_input_warnings(folder, inputs) == []  # a run of an earlier version
    record_inputs(folder, inputs, resumed=False)
    assert changed_input_warnings(folder, inputs) == []
    edit(files / name)
    (line,) = changed_input_warnings(folder, inputs)
    assert line.startswith("changed since this run was started")
    assert f"{files / name} (reward.function)" in line
    assert changed_input_warnings(folder, inputs, ("task.",)) == []
    record_inputs(folder, inputs, resumed=True)
    assert changed_input_warnings(folder, inputs) == [line]  # no checkpoint was loaded yet
    activate_resumed_config(folder)
    assert changed_input_warnings(folder, inputs) == []


@pytest.mark.parametrize("source", ["a[1].jsonl", "*.jsonl", "data", "rows.py:rows"])
def test_changed_data_warns(source: str, files: Path) -> None:
    (files / "data").mkdir()
    file = files / {"data": "data/a.jsonl", "rows.py:rows": "rows.py"}.get(source, "a[1].jsonl")
    file.write_text("one")
    record_inputs(files, load_data(source), resumed=False)
    assert changed_input_warnings(files, load_data(source)) == []
    file.write_text("two")
    (line,) = changed_input_warnings(files, load_data(source))
    assert f"{file} (task.train)" in line
    assert "order of prompts" in line


def test_new_and_missing_data_files_warn(files: Path) -> None:
    (files / "a.jsonl").write_text("one")
    record_inputs(files, load_data("*.jsonl"), resumed=False)
    (files / "a.jsonl").rename(files / "b.jsonl")
    (line,) = changed_input_warnings(files, load_data("*.jsonl"))
    assert "b.jsonl (task.train, new)" in line
    assert "a.jsonl (task.train, missing)" in line


def test_different_data_key_does_not_warn(files: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (files / name).write_text("one")
    record_inputs(files, load_data("a.jsonl"), resumed=False)
    assert changed_input_warnings(files, load_data("b.jsonl")) == []


@pytest.mark.parametrize("text", ["", "[]", '{"a.jsonl": 1}', None])
def test_run_without_input_hashes(text: str | None, files: Path) -> None:
    (files / "a.jsonl").write_text("one")
    if text is not None:
        (files / INPUTS).write_text(text)
    assert changed_input_warnings(files, load_data("a.jsonl")) == []


def test_inputs_of_an_earlier_version(files: Path) -> None:
    config = load_config(["reward=function", f"reward.function='{files}/my reward.py:score'"])
    record_inputs(files, input_files(config), resumed=False)
    known = json.loads((files / INPUTS).read_text())
    for entry in known.values():
        del entry["source"]
    (files / INPUTS).write_text(json.dumps(known))
    assert changed_input_warnings(files, input_files(config)) == []
    (files / "helper.py").write_text("value = 2\n")
    (line,) = changed_input_warnings(files, input_files(config))
    assert "helper.py (reward.function)" in line
