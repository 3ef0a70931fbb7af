"""What a model card says of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.evaluation.evaluate_run import EvaluatedWeights
from ippo_cli.evaluation.model_card import model_card

TASK = ("task=jsonl", "task.eval=b.jsonl", "actor.model=x")
TASK = (*TASK, "task.agents.solo.template='{q}'", "task.agents.solo.answer='{a}'")


def card(run: Path, *changes: str) -> str:
    subject = EvaluatedWeights(name="step_2", models={}, told={"iteration": 2})
    return model_card(load_config([*TASK, *changes]), "solo", run, subject, "ippo-export", merged=True)


def test_a_secret_of_the_environment_is_not_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_TOKEN", "3fb9aa77d0c1")
    text = card(tmp_path, "task.train='https://rows.example/${oc.env:DATA_TOKEN}/a.jsonl'")
    assert "3fb9aa77d0c1" not in text
    assert "train: https://rows.example/${oc.env:DATA_TOKEN}/a.jsonl" in text


def test_scores_and_intervals_that_are_not_known_are_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "evaluations").mkdir()
    unknown = {"low": None, "high": None, "by": "bootstrap"}
    for name, score in {"one": 0.5, "none": None}.items():
        told = {"primary_metric": "sampled/score", "score": score, "rows": 1, "intervals": {"sampled/score": unknown}}
        (tmp_path / "evaluations" / f"step_2-{name}.json").write_text(json.dumps(told))
    text = card(tmp_path, "task.train=a.jsonl")
    assert "on 1 rows: `sampled/score` 0.5000 (`as in training`)" in text
    assert "on 1 rows: `sampled/score` unknown (`as in training`)" in text
