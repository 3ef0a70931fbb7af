"""Evaluation of runs and models: lookup of weights, result files and comparisons."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small import small_config, train

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError, PreflightError, ResumeError
from ippo_cli.config.teams import policy_by_agent
from ippo_cli.evaluation.compare import compare
from ippo_cli.evaluation.evaluate_run import (
    evaluate_model,
    evaluate_run,
    find_weights,
    open_evaluation_task,
    result_file_name,
    samples_file,
    single_model_weights,
)


def test_result_file_name_depends_on_settings() -> None:
    assert result_file_name("step_00000002", 7, ["evaluation.seed=7"]) == "step_00000002-seed7.json"
    names = {
        result_file_name("step_00000002", 7, [text]) for text in ("rollout.temperature=0.5", "rollout.temperature=0.7")
    }
    assert len(names) == 2
    assert all(name.startswith("step_00000002-seed7-") for name in names)
    assert result_file_name("step_00000002", 7, ["rollout.temperature=0.5", "evaluation.seed=7"]) in names


def test_reward_checked_before_weights(tmp_path: Path) -> None:
    def open_task(*keys: str) -> None:
        with open_evaluation_task(load_config(["task=sorting", *keys]), torch.device("cpu")):
            pass

    with pytest.raises(PreflightError, match=r"reward\.url=http://127\.0\.0\.1:9/score"):
        open_task("reward=http", "reward.url=http://127.0.0.1:9/score")
    with pytest.raises(ConfigError, match=r"^reward\.template='\{topic\}' names the field 'topic'"):
        open_task("reward=judge", "reward.url=http://127.0.0.1:9/v1", "reward.model=m", "reward.template='{topic}'")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with learning rate 0, so that the best evaluation is the one before training."""
    return train(tmp_path_factory.mktemp("runs"), "num_iterations=1", "evaluation.every=0", "actor.learning_rate=0")


def scores(written: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in written.items() if key.startswith(("sampled/", "greedy/"))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpoint", "name", "iteration"),
    [
        ("latest", "step_00000001", 1),
        ("1", "step_00000001", 1),
        ("initial", "initial", 0),
        ("0", "initial", 0),
        ("best", "initial", 0),
    ],
)
def test_evaluation_matches_scores_of_run(checkpoint: str, name: str, iteration: int, run: Path) -> None:
    config, _ = small_config(run.parents[1])
    written = json.loads(evaluate_run(config, run, checkpoint, []).read_text())
    assert (written["checkpoint"], written["iteration"], written["run"]) == (name, iteration, str(run))
    known = json.loads((run / "run.json").read_text())["evaluation"]["first" if iteration == 0 else "last"]
    assert scores(written) == scores(known)
    assert written["score"] == known["score"]
    for agent in ("low", "high"):
        model = Path(written["models"][agent]["model"])
        assert model.is_relative_to(run)
        assert "model.safetensors" in written["models"][agent]["sha256"]


@pytest.mark.slow
def test_result_file_has_overrides_and_samples(run: Path) -> None:
    typed = ["rollout.temperature=0.5", "evaluation.num_generations=2"]
    config, _ = small_config(run.parents[1], *typed)
    target = evaluate_run(config, run, "latest", typed)
    assert target.name == result_file_name("step_00000001", 1234, typed)
    written = json.loads(target.read_text())
    assert written["overrides"] == typed
    assert 0 <= written["sampled/score"] <= 1
    assert (written["rows"], written["episodes"]) == (8, {"sampled": 16, "greedy": 8})
    assert written["failed"] == {"sampled": 0, "greedy": 0}
    for key in ("sampled/score", "sampled/exact/pass@2", "greedy/low/response_length"):
        assert written["intervals"][key]["low"] <= written[key] <= written["intervals"][key]["high"]
    samples = [json.loads(line) for line in samples_file(target).read_text().splitlines()]
    assert [row["mode"] for row in samples] == ["sampled"] * 16 + ["greedy"] * 8
    assert len({row["index"] for row in samples if row["mode"] == "sampled"}) == 16
    exact = [row["parts"]["exact"] for row in samples if row["mode"] == "sampled"]
    assert sum(exact) / 16 == pytest.approx(written["sampled/exact"])


@pytest.mark.slow
def test_compare_with_initial_weights_and_other_model(run: Path) -> None:
    config, _ = small_config(run.parents[1])
    known = policy_by_agent(config)
    one = find_weights(run, "latest", known)
    same = compare((config, one), (config, find_weights(run, "initial", known)), ("a", "b"), run, [])
    written = json.loads(same.read_text())
    assert written["differences"], "equal weights still have rows to compare"
    assert {(row["difference"], row["p"]) for row in written["differences"].values()} == {(0.0, 1.0)}
    assert written["one"]["metrics"] == written["other"]["metrics"]
    assert len(samples_file(same).read_text().splitlines()) == 2 * 16
    low = single_model_weights(config, str(run / "initial" / "low"))
    other = json.loads(compare((config, one), (config, low), ("a", "low"), run, []).read_text())
    assert {record["model"] for record in other["other"]["models"].values()} == {str(run / "initial" / "low")}
    row = other["differences"]["sampled/high/response_length"]
    assert row["one"] - row["other"] == pytest.approx(row["difference"])
    assert other["one"]["metrics"] == written["one"]["metrics"]
    assert any(row["difference"] for row in other["differences"].values()), "the other model generates other responses"


def test_comparison_allows_for_the_choice_of_the_best(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, _ = small_config(run.parents[1])
    policies = policy_by_agent(config)
    weights = {name: find_weights(run, name, policies) for name in ("best", "latest", "1", "initial")}
    assert {name: subject.chosen_among for name, subject in weights.items()} == {
        "best": 2,
        "latest": 1,
        "1": 1,
        "initial": 1,
    }
    for overrides, comparisons in (([], 2), (["task.eval=other.jsonl"], 1)):
        target = compare((config, weights["best"]), (config, weights["latest"]), ("one", "other"), run, overrides)
        assert json.loads(target.read_text())["comparisons"] == comparisons
        assert ("best score of 2 evaluations on these rows" in capsys.readouterr().out) is (comparisons > 1)


@pytest.mark.slow
def test_result_file_of_models_names_sources(run: Path, tmp_path: Path) -> None:
    low, high = (run / "initial" / name for name in ("low", "high"))
    overrides = ["actor=full", f"actor.model={low}", f"task.agents.high.actor.model={high}", "actor.dtype=fp32"]
    task = [
        "task.train_size=48",
        "task.eval_size=8",
        "rollout.decode_batch_size=8",
        "launch.threads=1",
        "rollout.max_new_tokens=8",
    ]
    config = load_config([*overrides, *task, f"output_dir={tmp_path}", "tracker.console=plain"])
    target = evaluate_model(config, overrides)
    written = json.loads(target.read_text())
    assert target.is_relative_to(tmp_path / "evaluations")
    assert [written["models"][name]["model"] for name in ("low", "high")] == [str(low), str(high)]
    assert written["task"] == "sorting"
    assert scores(written) == scores(json.loads((run / "run.json").read_text())["evaluation"]["first"])


@pytest.mark.slow
def test_missing_or_damaged_weights_rejected(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    with pytest.raises(ConfigError, match=r"^checkpoint=7 does not exist in .*; use one of 1, or initial"):
        find_weights(copy, "7", {"low": "low"})
    with pytest.raises(ConfigError, match="has solo, which is not an agent of this run; use high low"):
        find_weights(copy, "latest", {"solo": "solo"})
    state = json.loads((copy / "run.json").read_text())
    state["evaluation"]["best"]["iteration"] = 3  # this checkpoint could not be saved
    (copy / "run.json").write_text(json.dumps(state))
    with pytest.raises(ResumeError, match=r"checkpoint=best is iteration 3, which does not exist .*; use one of 1"):
        find_weights(copy, "best", {"low": "low"})
    manifest = next((copy / "checkpoints").glob("step_*")) / "low/actor/config.json"
    manifest.write_text("{}")
    with pytest.raises(ResumeError, match=r"is damaged \(low/actor/config.json has changed\); use checkpoint=initial"):
        find_weights(copy, "1", {"low": "low"})
    with pytest.raises(ResumeError, match=r"all of its checkpoints are damaged \(1\); only checkpoint=initial can be"):
        find_weights(copy, "latest", {"low": "low"})
    with (copy / "initial" / "low" / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ResumeError, match=r"model\.safetensors differs from what this run started with"):
        find_weights(copy, "initial", {"low": "low"})
