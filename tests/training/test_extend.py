"""The examples of docs/extend.md: each is trained, stopped, resumed with equal metrics, and planned."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from small import SMALL, assert_metrics_close, rows, train, train_on_two_ranks, train_with_stop

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.planning.plan import show_plan

PAGE = Path(__file__).parents[2] / "docs" / "extend.md"
EXAMPLE = re.compile(r"## (\w+)\n\n```python\n# (\w+\.py)\n(.*?)```\n\n```bash\nippo-train (.*?)\n```", re.DOTALL)
EXAMPLES = {name: (file, code, keys.split()) for name, file, code, keys in EXAMPLE.findall(PAGE.read_text())}
METRICS = {"Advantages": "targets/advantage/mean", "Objective": "low/policy/objective/penalty"}


def test_page_has_an_example_of_each_door() -> None:
    assert list(EXAMPLES) == ["Reward", "Advantages", "Objective", "Environment", "Engine", "Tracker"]
    assert len(PAGE.read_text().split()) < 700


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_resumes_exactly_and_plans(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, code, keys = EXAMPLES[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).write_text(code)
    keys = [*normalize_arguments(keys), "num_iterations=3", "evaluation.every=0", "algorithm.mini_batch_size=8"]
    keys.append("algorithm.allow_off_policy_steps=true" if name != "Objective" else "algorithm.ppo_epochs=1")
    whole = train(tmp_path / "whole", *keys)
    stopped = train_with_stop(
        tmp_path / "stopped", monkeypatch, "ippo_cli.training.experience.process_scores", 2, *keys
    )
    assert rows(stopped) == rows(whole)
    assert METRICS.get(name, "iteration") in rows(whole)[-1]
    show_plan(load_config([*SMALL, *keys, "mode=plan"]))


@pytest.mark.slow
def test_two_ranks_train_with_a_users_loss_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of the loss follows the metrics of all ranks, and is equal on both."""
    file, code, keys = EXAMPLES["Objective"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).write_text(code)
    keys = [*normalize_arguments(keys), "num_iterations=3", "evaluation.every=0", "algorithm.mini_batch_size=8"]
    one, two = train(tmp_path / "one", *keys), train_on_two_ranks(tmp_path / "two", *keys)
    assert_metrics_close(rows(one), rows(two))
    losses = _read_newest(one, "state.json")["losses"]
    assert losses == _read_newest(two, "state.json")["losses"]
    assert losses["low"]["policy"]["beta"] != 1.0


@pytest.mark.slow
def test_engines_of_two_ranks_have_their_own_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, code, keys = EXAMPLES["Engine"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).write_text(code)
    keys = [*normalize_arguments(keys), "num_iterations=2", "evaluation.every=0"]
    states = _read_newest(train_on_two_ranks(tmp_path / "two", *keys), "methods.json")["engine"]["states"]
    assert len(states) == 2
    assert states[0] != states[1]


def _read_newest(folder: Path, name: str) -> dict[str, Any]:
    """A file of the newest checkpoint."""
    files = sorted((folder / "checkpoints").rglob(name), key=lambda file: file.stat().st_mtime)
    return json.loads(files[-1].read_text())
