"""Micro-batches are a memory knob; the first ratio is one; skipped steps are seen."""

from __future__ import annotations

import math

import pytest
import torch
from small import a_trainer

from ippo_cli.formulas import gae
from ippo_cli.training.update import explained_variance
from ippo_cli.types import Targets

RAGGED = ["rollout.max_new_tokens=6", "rollout.temperature=2.0", "evaluation.every=0"]


def one_iteration(root, *overrides):
    with a_trainer(root, *RAGGED, *overrides) as trainer:
        trainer.step()
        row = trainer.state.progress.row
        weights = {
            f"{name}/{learner.stage}/{key}": value.clone()
            for name, agent in trainer.state.agents.items()
            for learner in agent.learners
            for key, value in learner.engine.module.state_dict().items()
        }
    return {key: value for key, value in row.items() if not key.startswith(("time/", "perf/"))}, weights


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "critic"),
    [
        ("token-mean", "separate"),
        ("token-mean", "value_head"),
        ("seq-mean-token-sum", "value_head"),
        ("seq-mean-token-mean", "separate"),
        ("seq-mean-token-sum-norm", "value_head"),
    ],
)
def test_neither_micro_batches_nor_padding_change_losses_or_gradients(tmp_path, mode, critic):
    keys = [f"algorithm.loss_aggregation={mode}", f"critic={critic}", "algorithm.entropy_coef=0.01"]
    whole, _ = one_iteration(tmp_path, *keys)
    split, _ = one_iteration(tmp_path, *keys, "deepspeed.micro_batch_tokens=24", "deepspeed.logit_chunk_tokens=5")
    padded, _ = one_iteration(tmp_path, *keys, "deepspeed.micro_batch_tokens=40", "deepspeed.pack_sequences=false")
    assert whole.keys() == split.keys() == padded.keys()
    norms = [key for key in whole if key.endswith("grad_norm")]
    assert norms
    assert all(whole[key] > 1e-4 for key in norms)
    for key, value in whole.items():
        assert split[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key
        assert padded[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key


@pytest.mark.slow
def test_the_ratio_is_one_before_the_first_step(tmp_path):
    row, _ = one_iteration(
        tmp_path,
        "algorithm=ppo",
        "algorithm.mini_batch_size=8",
        "rollout.temperature=0.7",
        "rollout.top_p=0.9",
        "actor.learning_rate=0.01",
    )
    for agent in ("low", "high"):
        assert row[f"{agent}/policy/ratio_first_step_deviation"] < 1e-4
        assert row[f"{agent}/policy/ratio_max_deviation"] > 1e-3  # later steps of the epoch did move the policy
        assert row[f"{agent}/rollout/filter_gap"] > 0.0


@pytest.mark.slow
def test_the_critic_alone_moves_during_its_warmup(tmp_path):
    with a_trainer(tmp_path, *RAGGED, "algorithm.critic_warmup=1") as trainer:
        agent = trainer.state.agents["low"]
        before = {name: value.clone() for name, value in agent.actor.engine.module.state_dict().items()}
        trainer.step()
        after = agent.actor.engine.module.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert trainer.state.progress.row["low/value/steps"] == 8
        assert "low/policy/steps" not in trainer.state.progress.row
        trainer.step()
        assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_target_kl_ends_the_epochs_early(tmp_path):
    row, _ = one_iteration(
        tmp_path,
        "algorithm=ppo",
        "algorithm.mini_batch_size=4",
        "algorithm.ppo_epochs=4",
        "actor.learning_rate=0.05",
        "algorithm.target_kl=0.0001",
    )
    assert row["low/policy/stopped_early"] == 1
    assert 2 <= row["low/policy/steps"] < 16
    assert row["low/value/steps"] == 16


@pytest.mark.slow
def test_the_critic_may_have_mini_batches_and_epochs_of_its_own(tmp_path):
    row, _ = one_iteration(tmp_path, "critic.mini_batch_size=4", "critic.ppo_epochs=3")
    assert row["low/policy/steps"] == 1
    assert row["low/value/steps"] == 12


@pytest.mark.slow
def test_a_step_with_a_gradient_that_is_no_number_is_skipped_counted_and_ends_the_run_in_the_end(tmp_path):
    from ippo_cli.config.errors import NonFiniteError

    with a_trainer(tmp_path, *RAGGED, "critic.mini_batch_size=16") as trainer:  # one step of it per iteration
        agent = trainer.state.agents["low"]
        head = agent.critic.engine.module.value_head.out.weight
        with torch.no_grad():
            head.fill_(float("nan"))
        policy = {name: value.clone() for name, value in agent.actor.engine.module.state_dict().items()}
        trainer.step()
        row = trainer.state.progress.row
        assert row["low/value/skipped_steps"] == 1
        assert row["low/policy/skipped_steps"] == 1
        assert row["high/value/skipped_steps"] == 0
        after = agent.actor.engine.module.state_dict()
        assert all(torch.equal(policy[name], after[name]) for name in policy)
        for _ in range(1, 4):
            trainer.step()
        with pytest.raises(NonFiniteError, match="low: 5 optimizer steps in a row"):
            trainer.step()


@pytest.mark.slow
def test_neither_early_rewards_nor_the_size_of_scoring_batches_change_anything(tmp_path):
    common = ("algorithm=ppo", "algorithm.mini_batch_size=16", "algorithm.kl.reward.coef=0.1")
    plain, *others = (
        one_iteration(tmp_path, *common, *keys)[0]
        for keys in ((), ("reward.reward_batch_rows=3",), ("deepspeed.forward_batch_tokens=20",))
    )
    for other in others:
        assert other.keys() == plain.keys()
        for name, value in plain.items():
            assert other[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.slow
def test_recomputed_log_probabilities_are_the_training_models(tmp_path):
    """The ratio is then exactly 1 before the first step, and the sampler's own numbers are close and apart."""
    row, _ = one_iteration(
        tmp_path,
        "algorithm=ppo",
        "algorithm.mini_batch_size=8",
        "rollout.recompute_logprobs=true",
        "algorithm.behavior_correction.level=token",
    )
    for agent in ("low", "high"):
        assert row[f"{agent}/policy/ratio_first_step_deviation"] == 0.0
        assert 0.0 < row[f"{agent}/rollout/sampler_gap"] <= row[f"{agent}/rollout/sampler_gap_max"] < 1e-5
        assert row[f"{agent}/rollout/effective_sample_share"] == pytest.approx(1.0, abs=1e-4)


def targets_of(values: torch.Tensor, returns: torch.Tensor, rewards: torch.Tensor | None = None) -> Targets:
    mask, nothing = torch.ones(values.shape).bool(), torch.zeros(values.shape)
    return Targets(
        rewards=returns if rewards is None else rewards,
        values=values,
        final_values=nothing[:, 0],
        ref_logprobs=nothing,
        advantages=returns - values,
        returns=returns,
        loss_mask=mask,
        value_mask=mask,
        behavior_weights=nothing + 1,
        sample_counts=mask.sum(dim=1),
    )


def test_the_variance_of_returns_that_a_critic_explains_is_worked_out_by_hand() -> None:
    returns = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert explained_variance(targets_of(returns, returns), 1.0) == 1.0
    assert explained_variance(targets_of(returns - 7, returns), 1.0) == 1.0, "an error that is everywhere the same"
    assert explained_variance(targets_of(0 * returns, returns), 1.0) == 0.0
    # Errors 1 2 0 1 have the variance 2/3, returns 5/3.
    worked_out = targets_of(torch.tensor([[0.0, 0.0], [3.0, 3.0]]), returns)
    assert explained_variance(worked_out, 1.0) == pytest.approx(1 - (2 / 3) / (5 / 3))
    far_off = targets_of(torch.randn(2, 2) * 1e4, returns)
    assert explained_variance(far_off, 1.0) < -1e4, "a critic that is far off is told, however far"


@pytest.mark.parametrize("score", [0.0, 1.0, -0.3])
@pytest.mark.parametrize("length", [1, 8, 512])
@pytest.mark.parametrize("gae_lambda", [1.0, 0.95])
def test_where_all_responses_earn_the_same_there_is_nothing_to_explain(
    score: float, length: int, gae_lambda: float
) -> None:
    torch.manual_seed(0)
    values, rewards, mask = 0.5 + torch.randn(64, length) / 10, torch.zeros(64, length), torch.ones(64, length).bool()
    rewards[:, -1] = score

    def told(gamma: float = 1.0) -> float:
        _, returns = gae(rewards, values, mask, gamma=gamma, gae_lambda=gae_lambda)
        return explained_variance(targets_of(values, returns, rewards), gamma)

    assert math.isnan(told())
    if score and length > 1:
        assert math.isfinite(told(gamma=0.9)), "later rewards are worth less"
    rewards[::2, -1] += 0.01
    assert math.isfinite(told()), "a hundredth is more than rounding"
