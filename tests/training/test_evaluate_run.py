"""`ippo-eval`'s work: scores on disk, each evaluation under a name of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small import small_config, train

from ippo_cli.training.evaluate_run import evaluate_run, file_name


def test_an_evaluation_with_other_settings_has_another_name() -> None:
    assert file_name("step_00000002", 7, ["evaluation.seed=7"]) == "step_00000002-seed7.json"
    names = {file_name("step_00000002", 7, [text]) for text in ("rollout.temperature=0.5", "rollout.temperature=0.7")}
    assert len(names) == 2
    assert all(name.startswith("step_00000002-seed7-") for name in names)
    assert file_name("step_00000002", 7, ["rollout.temperature=0.5", "evaluation.seed=7"]) in names


@pytest.mark.slow
def test_scores_are_written_with_the_overrides_that_made_them(tmp_path: Path) -> None:
    folder = train(tmp_path, "num_iterations=1", "evaluation.every=0")
    for overrides in ([], ["rollout.temperature=0.5"]):
        config, _ = small_config(tmp_path, *overrides)
        evaluate_run(config, folder, "latest", overrides)
        written = json.loads((folder / "evaluations" / file_name("step_00000001", 1234, overrides)).read_text())
        assert written["overrides"] == overrides
        assert 0 <= written["sampled/score"] <= 1
    assert len(list((folder / "evaluations").iterdir())) == 2
