"""The examples of docs/extend.md: each is trained, stopped, resumed with equal metrics, and planned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from small import SMALL, rows, train, train_with_stop

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.planning.plan import show_plan

PAGE = Path(__file__).parents[2] / "docs" / "extend.md"
EXAMPLE = re.compile(r"## (\w+)\n\n```python\n# (\w+\.py)\n(.*?)```\n\n```bash\nippo-train (.*?)\n```", re.DOTALL)
EXAMPLES = {name: (file, code, keys.split()) for name, file, code, keys in EXAMPLE.findall(PAGE.read_text())}
METRICS = {"Advantages": "targets/advantage/mean", "Objective": "low/policy/objective/penalty"}


def test_page_has_an_example_of_each_door() -> None:
    assert list(EXAMPLES) == ["Reward", "Advantages", "Objective", "Environment", "Engine", "Tracker"]


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
