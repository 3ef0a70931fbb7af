"""Trial of reward functions with placeholder responses in a plan."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config
from ippo_cli.planning.placeholder_episodes import check_primary_metric, reward_warnings
from ippo_cli.tasks.task import load_task

FUNCTIONS = """
def right(examples, responses):
    return {"agent": {name: [float(len(text)) for text in texts] for name, texts in responses.items()}}

def one_number(examples, responses):
    return {"team": [1.0]}

def bare(examples, responses):
    return [1.0] * len(examples)

def raises(examples, responses):
    return {"team": [row["answer"] for row in examples]}

def nothing(examples, responses):
    return {"team": [float("nan")] * len(examples)}

def by_step(examples, responses, episodes):
    return {"team_by_step": [[0.0] * len(one.turns) for one in episodes], "agent_by_turn": {
        name: [[1.0] * len(one.turns_of_agent(name)) for one in episodes] for name in responses
    }}
"""


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("right", None),
        ("by_step", None),
        ("one_number", "'team' must have one entry for each of the 2 rows, not 1"),
        ("bare", "must return a dict with keys among .* not list; return {'team'"),
        ("raises", r"mine.py:12: KeyError: 'answer'"),
        ("nothing", "a number is not finite"),
    ],
)
def test_always_failing_functions_warn(name: str, rule: str | None, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    keys = ["task=sorting", "reward=function", f"reward.function={tmp_path / 'mine.py'}:{name}"]
    config = load_config(keys)
    warnings = list(reward_warnings(config, load_task(config.task, config.seed)))
    if rule is None:
        assert warnings == []
    else:
        [text] = warnings
        assert text.startswith(f"reward.function={tmp_path / 'mine.py'}:{name} fails with placeholders as responses (")
        assert text.endswith("; if it also fails with real responses, no row is trained on")
        assert re.search(rule, text)


@pytest.mark.parametrize("metric", ["sampled/strict", "greedy/score", "sampled/solver/score", "greedy/strict/pass@2"])
def test_primary_metric_of_the_reward(metric: str, tmp_path: Path) -> None:
    config = gsm8k(tmp_path, metric)
    check_primary_metric(config, load_task(config.task, config.seed))


def test_primary_metric_not_reported_by_reward(tmp_path: Path) -> None:
    config = gsm8k(tmp_path, "sampled/exact")
    with pytest.raises(ConfigError) as raised:
        check_primary_metric(config, load_task(config.task, config.seed))
    assert str(raised.value) == (
        "task.primary_metric=sampled/exact is not reported by reward=gsm8k; use one of sampled/score sampled/flexible "
        "sampled/strict"
    )


def gsm8k(folder: Path, metric: str) -> Config:
    rows = folder / "rows.jsonl"
    rows.write_text("".join(f'{{"question": "{n} + 1?", "answer": "#### {n + 1}"}}\n' for n in range(4)))
    return load_config(
        ["task=gsm8k", f"task.train={rows}", f"task.eval={rows}", f"task.primary_metric={metric}", "actor=full",
         "actor.model=none"]
    )  # fmt: skip
