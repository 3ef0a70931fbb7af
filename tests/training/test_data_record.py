"""Data files that change between a run's start and its resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ippo_cli.config.load import load_config
from ippo_cli.config.schema import TaskConfig
from ippo_cli.training.data_record import compare_data

Make = Callable[[str], TaskConfig]


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.chdir(tmp_path)

    def make(source: str) -> TaskConfig:
        values = ("task=jsonl", f"task.train='{source}'", "task.eval=null", "task.eval_share=0.5", "actor=full")
        return load_config([*values, "actor.model=x", "task.agents.solo.answer='{q}'"]).task

    return make


@pytest.mark.parametrize("source", ["a[1].jsonl", "*.jsonl", "data", "rows.py:rows"])
def test_changed_file_is_named_once(source: str, task: Make, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    files = {"data": "data/a.jsonl", "rows.py:rows": "rows.py"}
    file = tmp_path / files.get(source, "a[1].jsonl")
    file.write_text("one")
    run = tmp_path / "run"
    run.mkdir()
    assert compare_data(run, task(source)) == {}
    assert compare_data(run, task(source)) == {}
    file.write_text("two")
    assert str(file) in compare_data(run, task(source))["changed_data"]
    assert compare_data(run, task(source)) == {}


def test_new_and_missing_files_are_named(task: Make, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("one")
    run = tmp_path / "run"
    run.mkdir()
    assert compare_data(run, task("*.jsonl")) == {}
    (tmp_path / "a.jsonl").rename(tmp_path / "b.jsonl")
    assert "b.jsonl (new), " in (text := compare_data(run, task("*.jsonl"))["changed_data"])
    assert "a.jsonl (not read now)" in text
