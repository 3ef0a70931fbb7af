"""Parts of the gradient of shared weights by agent: exact sums, unchanged updates, weights, and exact resume."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small import (
    assert_resume_is_exact,
    assert_two_ranks_agree,
    experience_of,
    final_weights,
    open_trainer,
    rows,
    stopping_reward,
    train,
)

from ippo_cli.compose.load import load_config
from ippo_cli.config.schema import RoleBalance
from ippo_cli.training.methods.role_gradients import WEIGHT_LIMIT, Balance, RoleState, product_metrics, split_roles
from ippo_cli.training.minibatches import iterate_steps
from ippo_cli.training.trainer import Trainer
from ippo_cli.types import StepContext

SHARED, MEASURED = "team=shared_policy", "team.role_gradients_every=1"
SHORT = ("num_iterations=2", "evaluation.every=0", "checkpoint.every=0", "actor.warmup_iterations=0")
UNEQUAL = ("rollout.temperature=2.0", "task.agents.low.rollout.max_new_tokens=2")  # high has longer responses
EQUAL = "team.role_balance=equal_norm"
GRADNORM = ("team.role_balance=gradnorm", "team.gradnorm_alpha=1.5", "team.gradnorm_best_score=1.2")
ONE_STEP = ("algorithm.mini_batch_size=16", "algorithm.ppo_epochs=1")
CONTEXT = StepContext(seed=0, iteration=0, num_iterations=2)


def flat(gradient: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.flatten() for part in gradient])


def step_row(trainer: Trainer) -> dict[str, Any]:
    trainer.step()
    assert trainer.state.progress.row is not None
    return dict(trainer.state.progress.row)


def test_metrics_by_hand() -> None:
    """Gradients (3, 0) and (0, 4) sum to (3, 4) of norm 5; (1, 0) and (-1, 0) cancel each other."""
    found = product_metrics("pair/policy", ("a", "b"), [[9.0, 0.0], [0.0, 16.0]])
    assert found == pytest.approx(
        {
            "pair/policy/role_grad_norm": 5.0,
            "a/policy/role_grad_norm": 3.0,
            "a/policy/role_grad_fraction": 9 / 25,
            "a/policy/role_grad_cosine": 0.6,
            "a/policy/role_grad_cosine/b": 0.0,
            "b/policy/role_grad_norm": 4.0,
            "b/policy/role_grad_fraction": 16 / 25,
            "b/policy/role_grad_cosine": 0.8,
        }
    )
    opposed = product_metrics("pair/policy", ("a", "b"), [[1.0, -1.0], [-1.0, 1.0]])
    assert opposed["pair/policy/role_grad_norm"] == 0.0
    assert opposed["a/policy/role_grad_cosine/b"] == -1.0
    assert math.isnan(opposed["a/policy/role_grad_fraction"])


def test_equal_norm_uses_running_means_of_agents_with_a_gradient() -> None:
    balance = Balance(load_config([SHARED, MEASURED, EQUAL]))
    assert balance.kind is RoleBalance.equal_norm
    first = balance.update(RoleState(), {"a": 1.0, "b": 3.0}, {})
    assert first.weights == pytest.approx({"a": 1.5, "b": 0.5})
    second = balance.update(first, {"a": 0.0, "b": 1.0}, {})  # a keeps 1, b has (3 + 1) / 2
    assert second.mean_norms == {"a": 1.0, "b": 2.0}
    assert second.weights == pytest.approx({"a": 4 / 3, "b": 2 / 3})
    assert balance.update(second, {"a": math.nan, "b": 1.0}, {}) == second
    limited = balance.update(RoleState(), {"a": 1.0, "b": 1e6}, {}).weights
    assert limited == pytest.approx({"a": 2.0 - 1 / WEIGHT_LIMIT, "b": 1 / WEIGHT_LIMIT})


def test_spikes_by_agent_and_state_as_json() -> None:
    state, spikes = RoleState(), {}
    for _ in range(10):
        state, spikes = state.record({"a": 1.0, "b": 1.0})
        assert spikes == {"a": False, "b": False}
    again = RoleState(**json.loads(json.dumps(state.to_json())))
    assert again == state
    assert again.record({"a": 3.1, "b": 2.9})[1] == {"a": True, "b": False}
    assert again.record({"a": math.nan, "b": math.inf})[1] == {"a": False, "b": False}


def test_gradnorm_raises_weight_of_agent_that_improves_less() -> None:
    balance = Balance(load_config([SHARED, MEASURED, *GRADNORM]))
    state = balance.update(RoleState(), {"a": 1.0, "b": 1.0}, {"a": 0.2, "b": 0.2})
    assert state.weights == pytest.approx({"a": 1.0, "b": 1.0})
    assert state.first_losses == pytest.approx({"a": 1.0, "b": 1.0})
    state = balance.update(state, {"a": 1.0, "b": 1.0}, {"a": 0.2, "b": 0.7})
    assert state.weights["a"] > 1.0 > state.weights["b"]
    assert sum(state.weights.values()) == pytest.approx(2.0)
    assert balance.update(state, {"a": 1.0, "b": 1.0}, {"a": math.nan, "b": 0.2}).first_losses == state.first_losses


@pytest.mark.parametrize("keys", [("critic=separate",), ("critic=value_head",), ("actor=tiny_lora", "critic=adapter")])
def test_parts_sum_to_gradient_of_the_step(keys: tuple[str, ...], tmp_path: Path) -> None:
    small = ("deepspeed.micro_batch_tokens=64", "algorithm.entropy_coef=0.05", "algorithm.kl.loss.coef=0.1")
    with open_trainer(tmp_path, SHARED, MEASURED, *SHORT, *UNEQUAL, *ONE_STEP, *small, *keys) as trainer:
        experience = experience_of(trainer)
        targets, _ = trainer.state.algorithm.compute_targets(trainer.state.team, experience)
        learner = trainer.state.team.learners[0]
        (step,) = iterate_steps(learner, experience.rollouts, targets, CONTEXT)
        learner.engine.train()
        whole = flat(learner.compute_gradient(step.batch, CONTEXT))
        parts = {name: flat(learner.compute_gradient(part, CONTEXT)) for name, part in split_roles(learner, step.batch)}
        torch.testing.assert_close(parts["low"] + parts["high"], whole, rtol=1e-4, atol=1e-7)
        assert float(parts["low"].norm()) < 0.9 * float(whole.norm())
        row = step_row(trainer)
        for learner in trainer.state.team.learners:
            stage = learner.stage
            norm = row[f"shared/{stage}/role_grad_norm"]
            assert norm == pytest.approx(row[f"shared/{stage}/grad_norm"], rel=1e-5)
            assert sum(row[f"{name}/{stage}/role_grad_fraction"] for name in ("low", "high")) == pytest.approx(1.0)
        stage = trainer.state.team.learners[0].stage
        for name, part in parts.items():
            assert row[f"{name}/{stage}/role_grad_norm"] == pytest.approx(float(part.norm()), rel=1e-5)
        pair = torch.cosine_similarity(parts["low"], parts["high"], dim=0)
        assert row[f"low/{stage}/role_grad_cosine/high"] == pytest.approx(float(pair), abs=1e-5)


@pytest.mark.parametrize("stage", ["zero0", "zero1", "zero2"])
def test_measurement_leaves_run_bitwise_unchanged(stage: str, tmp_path: Path) -> None:
    keys = (SHARED, *SHORT, *UNEQUAL, "algorithm=ppo", "algorithm.mini_batch_size=8", f"deepspeed={stage}")
    without, measured = train(tmp_path, *keys), train(tmp_path, *keys, "team.role_gradients_every=2")
    kept = [{key: value for key, value in row.items() if "/role_" not in key} for row in rows(measured)]
    assert kept == rows(without)
    has_parts = [any("/role_" in key for key in row) for row in rows(measured)]
    assert has_parts == [False, True, False], "rows before training, of the first and of the second iteration"
    expected, found = final_weights(without, ["shared"]), final_weights(measured, ["shared"])
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_equal_norm_step_has_gradient_of_weighted_parts(tmp_path: Path) -> None:
    small = ("deepspeed.micro_batch_tokens=64", "algorithm.entropy_coef=0.05")
    with open_trainer(tmp_path, SHARED, MEASURED, EQUAL, *SHORT, *UNEQUAL, *ONE_STEP, *small) as trainer:
        for _ in range(2):
            row = step_row(trainer)
            norms, weights = (
                [row[f"{name}/policy/{metric}"] for name in ("low", "high")]
                for metric in ("role_grad_norm", "role_weight")
            )
            assert sum(weights) == pytest.approx(2.0)
            low, high = (norm * weight for norm, weight in zip(norms, weights, strict=True))
            cosine = row["low/policy/role_grad_cosine/high"]
            expected = math.sqrt(low**2 + high**2 + 2 * cosine * low * high)
            assert row["shared/policy/grad_norm"] == pytest.approx(expected, rel=1e-4)
            assert row["shared/policy/role_grad_norm"] != pytest.approx(expected, rel=1e-3), "weights have an effect"
            assert "low/value/role_weight" not in row
            if row["shared/policy/steps"] and trainer.state.progress.iteration == 1:
                assert low == pytest.approx(high), "the first measurement is its own mean"


@pytest.mark.slow
@pytest.mark.parametrize("balance", [(EQUAL,), GRADNORM])
def test_balanced_run_resumes_exactly(
    balance: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [SHARED, MEASURED, *balance, *SHORT, *UNEQUAL, *stopping_reward(tmp_path)]
    whole = assert_resume_is_exact(tmp_path, monkeypatch, *keys)
    weights = [row["low/policy/role_weight"] for row in rows(whole)[1:]]
    assert len(set(weights)) == 2


@pytest.mark.core
@pytest.mark.slow
def test_two_ranks_measure_and_weigh_as_one_rank(tmp_path: Path) -> None:
    keys = [SHARED, MEASURED, EQUAL, *SHORT, *UNEQUAL, "algorithm=ppo", "algorithm.mini_batch_size=8"]
    one = assert_two_ranks_agree(tmp_path, *keys, ranks=["deepspeed=zero2"], rel=2e-3)
    assert "low/policy/role_weight" in one[-1]


@pytest.mark.slow
def test_placed_learners_are_measured_on_their_ranks(tmp_path: Path) -> None:
    keys = [SHARED, MEASURED, EQUAL, *SHORT, *UNEQUAL, "algorithm=ppo", "algorithm.mini_batch_size=8"]
    assert_two_ranks_agree(tmp_path, *keys, ranks=['launch.placement={"actor": 0, "critic": 1}'], rel=2e-3)


def test_iterations_without_policy_update_are_not_measured(tmp_path: Path) -> None:
    """While only the value head learns, norms are those of the value loss."""
    warmup = ("algorithm.critic_warmup=1", "critic=value_head", SHARED, MEASURED, EQUAL, *SHORT, *ONE_STEP)
    with open_trainer(tmp_path, *UNEQUAL, *warmup) as trainer:
        first, second = step_row(trainer), step_row(trainer)
    weights = [[key for key in row if key.endswith("/role_weight")] for row in (first, second)]
    norms = [[key for key in row if key.endswith("/role_grad_norm")] for row in (first, second)]
    assert not weights[0]
    assert not norms[0]
    assert len(weights[1]) == 2
    assert len(norms[1]) == 3
