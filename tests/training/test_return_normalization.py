"""`critic.popart_beta`: values follow returns of any scale, over ranks, after a resume, and in saved critics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from small import (
    assert_resume_is_exact,
    assert_two_ranks_agree,
    experience_of,
    open_trainer,
    rows,
    stopping_reward,
    train,
)

from ippo_cli.algorithms.return_moments import ReturnMoments
from ippo_cli.engine import distributed
from ippo_cli.models.critic import ValueModel, load_value_head
from ippo_cli.runs.checkpoint_files import newest_intact_checkpoint
from ippo_cli.training.methods.popart import start_normalization, update_normalization

PPO = ("algorithm=ppo", "critic.popart_beta=0.9", "actor.warmup_iterations=0")
SCALED = ("reward.processor=[scale,shift]", "reward.scale=100", "reward.shift=500")
SHORT = ("num_iterations=3", "evaluation.every=0", "checkpoint.every=0", "task=sorting_solo")


def test_moments_by_hand() -> None:
    distributed.init(device="cpu", timeout_s=60)
    try:
        one, two = torch.tensor([[0.0, 2.0, 99.0]]), torch.tensor([[4.0, 4.0, 4.0]])
        mask = torch.tensor([[True, True, False]])
        first = ReturnMoments(mean=3.0, std=7.0).update(one, mask, 0.5)
        assert (first.mean, first.std) == (1.0, 1.0)  # moments of the start have no weight
        second = first.update(two, mask, 0.5)
        # mean (.5 * 1 + 4) / 1.5 = 3, mean square (.5 * 2 + 16) / 1.5 = 34 / 3
        assert (second.mean, second.std) == pytest.approx((3.0, (34 / 3 - 9) ** 0.5))
        assert first.update(two, mask, 1.0).mean == 2.5
        assert first.update(two, torch.zeros_like(mask), 0.5) == first
        assert ReturnMoments().start_from(two, mask).std == pytest.approx(4e-4)  # at least 1e-4 of the mean
    finally:
        distributed.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["separate", "value_head"])
def test_update_is_invariant_to_scale_and_shift_of_the_reward(tmp_path: Path, critic: str) -> None:
    plain = rows(train(tmp_path, *PPO, *SHORT, f"critic={critic}"))
    scaled = rows(train(tmp_path, *PPO, *SHORT, *SCALED, f"critic={critic}"))
    for before, after in zip(plain[1:], scaled[1:], strict=True):
        for key, value in before.items():
            is_invariant = "/policy/" in key or key.endswith(("value/loss", "explained_variance", "score/mean"))
            if is_invariant and not key.endswith("first_step_deviation"):
                assert after[key] == pytest.approx(value, rel=2e-3, abs=2e-4), key
        for key in ("targets/value", "value/return_mean"):
            (name,) = {name.split("/")[0] for name in before if name.endswith(key)}
            assert after[f"{name}/{key}"] == pytest.approx(500 + 100 * before[f"{name}/{key}"], abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["zero0", "zero3"])
def test_values_remain_when_moments_change(tmp_path: Path, stage: str) -> None:
    with open_trainer(tmp_path, *PPO, *SHORT, *SCALED, f"deepspeed={stage}") as trainer:
        team = trainer.state.team
        trainer.step()
        (agent,) = team.values()
        learner = agent.critic
        assert learner is not None
        experience = experience_of(trainer, 1)
        (rollout,) = experience.rollouts.values()
        targets, _ = trainer.state.algorithm.compute_targets(team, experience)
        before = agent.values(rollout)
        (target,) = targets.values()
        target.returns[:] = 1000 + 50 * torch.randn_like(target.returns)
        start_normalization(team, experience.scores)  # only before the first buffer
        metrics = update_normalization(learner, targets)
        head = learner.engine.module.value_head
        assert head.config.value_mean == metrics[f"{learner.name}/value/return_mean"] > 700
        for old, new in zip(before, agent.values(rollout), strict=True):
            torch.testing.assert_close(new, old, rtol=1e-4, atol=0.01)


@pytest.mark.parametrize("critic", ["separate", "value_head"])
def test_values_off_the_responses_are_0(tmp_path: Path, critic: str) -> None:
    """And not the mean of the returns, which is the value of an output of 0."""
    with open_trainer(tmp_path, *PPO, *SHORT, f"critic={critic}") as trainer:
        (agent,) = trainer.state.team.values()
        (rollout,) = experience_of(trainer).rollouts.values()
        learner = agent.critic or agent.policy
        learner.set_return_moments(ReturnMoments(mean=500.0, std=2.0))
        values, _ = agent.values(rollout)
    assert (values[rollout.response_mask] > 400).all()
    assert not values[~rollout.response_mask].any()
    assert not rollout.response_mask.all()


@pytest.mark.slow
def test_one_rank_and_two_agree(tmp_path: Path) -> None:
    short = ("num_iterations=2", "evaluation.every=0", "checkpoint.every=0", "deepspeed=zero2")
    assert_two_ranks_agree(tmp_path, *PPO, *SCALED, *short)


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["separate", "value_head"])
def test_resume_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, critic: str) -> None:
    assert_resume_is_exact(tmp_path, monkeypatch, *stopping_reward(tmp_path), *PPO, f"critic={critic}")


@pytest.mark.slow
def test_saved_critic_has_its_moments(tmp_path: Path) -> None:
    run = train(tmp_path, *PPO, *SHORT, *SCALED)
    checkpoint = newest_intact_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    (name,) = json.loads((checkpoint / "state.json").read_text())["return_moments"]
    moments = ReturnMoments(**json.loads((checkpoint / "state.json").read_text())["return_moments"][name]["value"])
    saved = ValueModel.from_pretrained(checkpoint / name / "critic")
    ids = torch.arange(5, 13)[None]
    expected = saved.value_head(saved.backbone(input_ids=ids).last_hidden_state)
    assert (saved.config.value_mean, saved.config.value_std) == (moments.mean, moments.std)
    assert (expected - moments.mean).abs().max() < 5 * moments.std
    assert moments.mean > 400
    for beta in ("0.5", "null"):  # without normalisation, the moments are folded into the weights
        start = (f"critic.warm_start={checkpoint / name / 'critic'}", f"critic.popart_beta={beta}")
        with open_trainer(tmp_path, *PPO, *SHORT, *SCALED, *start) as trainer:
            module = trainer.state.team[name].critic.engine.module
            start_normalization(trainer.state.team, experience_of(trainer).scores)  # not of a trained head
            assert module.value_head.is_normalized is (beta != "null")
            values = module.value_head(module.backbone(input_ids=ids).last_hidden_state)
            torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-2)


@pytest.mark.slow
def test_saved_value_head_has_its_moments(tmp_path: Path) -> None:
    run = train(tmp_path, *PPO, *SHORT, *SCALED, "critic=value_head")
    checkpoint = newest_intact_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    (name,) = json.loads((checkpoint / "state.json").read_text())["return_moments"]
    head = load_value_head(checkpoint / name / "critic")
    assert head.config.value_mean == rows(run)[-1][f"{name}/value/return_mean"]
    assert head(torch.zeros(1, head.config.hidden_size)).item() > 400
