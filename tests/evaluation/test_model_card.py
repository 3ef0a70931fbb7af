"""Contents of model cards."""

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
    subject = EvaluatedWeights(name="step_2", models={}, metadata={"iteration": 2})
    return model_card(load_config([*TASK, *changes]), "solo", run, subject, "ippo-export", merged=True)


def test_secrets_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_TOKEN", "3fb9aa77d0c1")
    text = card(tmp_path, "task.train='https://rows.example/${oc.env:DATA_TOKEN}/a.jsonl'")
    assert "3fb9aa77d0c1" not in text
    assert "train: https://rows.example/${oc.env:DATA_TOKEN}/a.jsonl" in text


def test_unknown_scores_and_intervals(tmp_path: Path) -> None:
    (tmp_path / "evaluations").mkdir()
    unknown = {"low": None, "high": None, "by": "t"}
    for name, score in {"one": 0.5, "none": None}.items():
        record = {"primary_metric": "sampled/score", "score": score, "rows": 1, "intervals": {"sampled/score": unknown}}
        (tmp_path / "evaluations" / f"step_2-{name}.json").write_text(json.dumps(record))
    text = card(tmp_path, "task.train=a.jsonl")
    assert "on 1 row: `sampled/score` 0.5000 (`as in training`)" in text
    assert "on 1 row: `sampled/score` unknown (`as in training`)" in text
