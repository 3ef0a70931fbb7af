"""`max_iterations_this_run`: a run that ends early and is resumed equals an uninterrupted run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from small import final_weights, new_run, rows, train

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ResumeError
from ippo_cli.evaluation.evaluate_run import find_weights
from ippo_cli.sweeps.population import copy_parent_run
from ippo_cli.training.algorithm_state import AlgorithmState
from ippo_cli.training.process import run_training
from ippo_cli.training.targets import Algorithm


@pytest.mark.slow
def test_copy_of_stopped_run_resumes_exactly(tmp_path: Path) -> None:
    overrides = ("num_iterations=4", "evaluation.every=2", "checkpoint.every=0", "checkpoint.best=false")
    whole = train(tmp_path / "whole", *overrides)
    config, folder = new_run(tmp_path / "part", *overrides, "max_iterations_this_run=2")
    run_training(config, folder, resumed=False)
    assert json.loads((folder / "run.json").read_text())["state"] == "done"
    assert [path.name for path in (folder / "checkpoints").glob("step_*")] == ["step_00000002"]
    assert rows(folder) == rows(whole)[:3]
    child = folder.with_name("child")
    copy_parent_run(folder, child)
    run_training(replace(config, max_iterations_this_run=None), child, resumed=True)
    assert rows(child) == rows(whole)
    expected, found = final_weights(whole), final_weights(child)
    assert all(found[name].equal(value) for name, value in expected.items())
    assert rows(folder) == rows(whole)[:3], "the parent is left as it was"


UNSCORED = """
def reward(examples, responses):
    return {"team": [0.5] * len(examples), "parts": {"part": [float("nan")] * len(examples)}}
"""


def test_metric_without_a_number_is_never_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "reward.py").write_text(UNSCORED)
    keys = ("reward=function", f"reward.function={tmp_path / 'reward.py'}:reward", "task.primary_metric=sampled/part")
    folder = train(tmp_path, *keys, "num_iterations=6", "evaluation.every=1", "evaluation.patience=2")
    output = capsys.readouterr().out
    assert [row["iteration"] for row in rows(folder)] == [0, 1, 2]
    assert sorted(json.loads((folder / "run.json").read_text())["evaluation"]) == ["first", "last"]
    assert output.count("task.primary_metric=sampled/part has no value in an evaluation") == 1
    assert "ended by evaluation.patience=2: no evaluation has a score" in output
    assert "no best score" in output
    assert "best nan" not in output
    assert not (folder / "checkpoints" / "best.json").exists()
    with pytest.raises(ResumeError, match="no evaluation has a score, so none is the best; use checkpoint=latest"):
        find_weights(folder, "best", {"low": "low", "high": "high"})


def test_fixed_kl_coef_can_change_on_resume() -> None:
    class Known:
        has_reference = True

    fixed = load_config(["algorithm.kl.reward.coef=0.2"]).algorithm
    adapting = load_config(
        ["algorithm.kl.reward.coef=0.2", "algorithm.kl.reward.target=0.1", "algorithm.kl.reward.horizon=10"]
    ).algorithm
    saved = {"low": 0.05}
    coefs = [
        Algorithm(config=config, num_generations=1, seed=0, state=AlgorithmState(kl_coef=saved)).active_kl_coefs(
            {"low": Known()}
        )  # type: ignore[dict-item]
        for config in (fixed, adapting)
    ]
    assert coefs == [{"low": 0.2}, {"low": 0.05}]
