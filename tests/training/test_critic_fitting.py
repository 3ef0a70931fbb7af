"""`mode=critic`: critics are fitted, policies stay as they are, and other runs start from the critics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small import (
    assert_resume_is_exact,
    assert_two_ranks_agree,
    final_weights,
    new_run,
    open_trainer,
    rows,
    small_config,
    stopping_reward,
    train,
)

from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.runs.records import RunRecord
from ippo_cli.sweeps.summary import read_metric_name
from ippo_cli.training.experience import HeldOutEpisodes
from ippo_cli.training.process import run_training
from ippo_cli.training.trainer import Trainer

FIT = ("mode=critic", "algorithm=ppo", "critic.learning_rate=2e-3")
ERROR, EXPLAINED = "eval/sampled/low/value_error", "eval/sampled/explained_variance"


def evaluations(folder: Path) -> list[dict[str, float]]:
    return [row for row in rows(folder) if EXPLAINED in row]


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["separate", "value_head", "centralized"])
def test_policies_keep_their_weights_and_critics_learn(tmp_path: Path, critic: str) -> None:
    folder = train(tmp_path, *FIT, f"critic={critic}")
    (initial,) = {path.parent.parent for path in (folder / "initial").glob("*/model.safetensors")}
    found = final_weights(folder)
    for agent in ("low", "high"):
        before = load_file(initial / agent / "model.safetensors")
        assert all(found[f"{agent}/actor/{name}"].equal(value) for name, value in before.items())
    measured = evaluations(folder)
    assert [row["iteration"] for row in measured] == [0, 2, 4]
    assert measured[-1][ERROR] < measured[0][ERROR]
    assert measured[0]["eval/sampled/low/score"] == measured[-1]["eval/sampled/low/score"]
    assert RunRecord(folder).primary_metric == read_metric_name(folder) == "sampled/explained_variance"
    assert json.loads((folder / "run.json").read_text())["evaluation"]["last"]["score"] == measured[-1][EXPLAINED]


def evaluate_critics(trainer: Trainer) -> tuple[dict[str, float], HeldOutEpisodes]:
    """The metrics of a trainer's critics, and the held-out episodes."""
    evaluator = trainer.critic_evaluator
    assert evaluator is not None
    metrics = evaluator.evaluate(trainer.state).metrics
    assert evaluator.held_out is not None
    return metrics, evaluator.held_out


def test_values_are_measured_against_sums_of_later_rewards(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *FIT, "algorithm.gae_lambda=0.5") as trainer:
        found, held_out = evaluate_critics(trainer)
        # The zero head gives values of 0, and the score is the return of every token.
        rollout, score = held_out.rollouts["low"], held_out.raw_scores.numbers["low"].sum(dim=1)
        squares = (score.square()[:, None] * rollout.response_mask).sum() / rollout.response_mask.sum()
        assert found["sampled/low/value_error"] == pytest.approx(float(squares) ** 0.5, rel=1e-5)
        assert found["sampled/explained_variance"] == pytest.approx(0.0, abs=1e-6)
        assert found["sampled/low/score"] == pytest.approx(float(score.mean()), rel=1e-5)
        with torch.no_grad():  # values that are the mean score explain nothing, and have a smaller error
            trainer.state.team["low"].critic.engine.module.value_head.out.bias.fill_(float(score.mean()))
        moved, again = evaluate_critics(trainer)
        assert moved["sampled/low/value_error"] < found["sampled/low/value_error"]
        assert moved["sampled/explained_variance"] == pytest.approx(0.0, abs=1e-5)
        assert again is held_out


def test_truncated_rows_are_left_out_where_their_returns_hold_values(tmp_path: Path) -> None:
    short = ("rollout.max_new_tokens=4", "rollout.temperature=2.0", "algorithm.truncation=bootstrap")
    with open_trainer(tmp_path, *FIT, *short) as trainer:
        with torch.no_grad():
            trainer.state.team["low"].critic.engine.module.value_head.out.bias.fill_(7.0)
        found, held_out = evaluate_critics(trainer)
        rollout, score = held_out.rollouts["low"], held_out.raw_scores.numbers["low"].sum(dim=1)
        assert 0 < rollout.finished.sum() < len(score)
        counted = rollout.response_mask & rollout.finished[:, None]
        squares = ((score - 7.0).square()[:, None] * counted).sum() / counted.sum()
        assert found["sampled/low/value_error"] == pytest.approx(float(squares) ** 0.5, rel=1e-5)


@pytest.mark.slow
def test_ppo_starts_from_the_critic_of_each_agent(tmp_path: Path) -> None:
    fitted = train(tmp_path / "fitted", *FIT)
    checkpoints = fitted / "checkpoints"
    best = checkpoints / "step_00000002"
    (checkpoints / "best.json").write_text(json.dumps({"checkpoint": best.name}))
    config, _ = small_config(tmp_path, "algorithm=ppo", f"critic.warm_start={fitted}")
    starts = {name: agent.critic.warm_start for name, agent in config.task.agents.items()}  # type: ignore[attr-defined]
    assert starts == {name: str(best / name / "critic") for name in ("low", "high")}
    with open_trainer(tmp_path, "algorithm=ppo", f"critic.warm_start={fitted}") as trainer:
        for name in ("low", "high"):
            stored = load_file(best / name / "critic" / "model.safetensors")
            loaded = trainer.state.team[name].critic.engine.module.state_dict()
            assert all(loaded[key].equal(value) for key, value in stored.items())
    step = checkpoints / "step_00000004"
    config, _ = small_config(tmp_path, "algorithm=ppo", f"task.agents.low.critic.warm_start={step}")
    assert config.task.agents["low"].critic.warm_start == str(step / "low" / "critic")  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"without an agent solo; its agents are low high"):
        small_config(tmp_path, "task=sorting_solo", "algorithm=ppo", f"critic.warm_start={fitted}")


@pytest.mark.slow
def test_value_head_starts_from_a_fitted_head(tmp_path: Path) -> None:
    fitted = train(tmp_path / "fitted", *FIT, "critic=value_head", "checkpoint.best=false")
    start = f"critic.warm_start={fitted}"
    with open_trainer(tmp_path, "algorithm=ppo", "critic=value_head", start) as trainer:
        stored = load_file(fitted / "checkpoints" / "step_00000004" / "low" / "critic" / "model.safetensors")
        head = trainer.state.team["low"].policy.engine.module.value_head.state_dict()
        assert any(bool(value.any()) for value in stored.values())
        assert all(head[key].equal(value) for key, value in stored.items())
    for overrides, rule in (
        (("critic.value_head_hidden_dim=8",), "its value_head_hidden_dim is None"),
        (("actor.hidden_size=64",), "states of width 32, and the actor's have 64"),
    ):
        config, folder = new_run(tmp_path, "algorithm=ppo", "critic=value_head", start, *overrides)
        with pytest.raises(PreflightError, match=rule):
            run_training(config, folder, resumed=False)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["critic", "train"])
def test_run_ends_after_evaluations_without_a_better_score(tmp_path: Path, mode: str) -> None:
    overrides = ("algorithm=ppo", f"mode={mode}", "actor.learning_rate=0", "critic.learning_rate=0", "num_iterations=9")
    config, folder = new_run(tmp_path, *overrides, "evaluation.patience=2")
    run_training(config, folder, resumed=False)
    assert [row["iteration"] for row in rows(folder)] == [0, 1, 2, 3, 4]  # evaluated after 0, 2 and 4
    assert (folder / "checkpoints" / "step_00000004").is_dir()
    assert json.loads((folder / "run.json").read_text())["state"] == "done"
    run_training(config, folder, resumed=True)
    assert rows(folder)[-1]["iteration"] == 4
    longer = replace(config, evaluation=replace(config.evaluation, patience=3))
    run_training(longer, folder, resumed=True)
    assert rows(folder)[-1]["iteration"] == 6


@pytest.mark.slow
def test_stopped_and_resumed_fit_equals_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = (*FIT, *stopping_reward(tmp_path), "checkpoint.every=1", "evaluation.every=1", "num_iterations=3")
    assert_resume_is_exact(tmp_path, monkeypatch, *overrides, at_call=3)


@pytest.mark.slow
def test_two_ranks_equal_one(tmp_path: Path) -> None:
    assert_two_ranks_agree(tmp_path, *FIT, "num_iterations=2")
