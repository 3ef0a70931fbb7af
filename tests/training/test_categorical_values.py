"""`critic.value_bins`: critics with a distribution over bins, in runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from small import (
    assert_resume_is_exact,
    assert_two_ranks_agree,
    experience_of,
    open_trainer,
    rows,
    small_config,
    stopping_reward,
    train,
)

from ippo_cli.config.errors import PreflightError
from ippo_cli.models.critic import ValueModel
from ippo_cli.runs.checkpoint_files import newest_intact_checkpoint
from ippo_cli.training.methods.popart import update_normalization

BINS = ("algorithm=ppo", "algorithm.value_clip_range=null", "critic.value_bins=11", "actor.warmup_iterations=0")
RANGE = ("critic.value_min=-0.5", "critic.value_max=1.5")
SHORT = ("num_iterations=3", "evaluation.every=0", "checkpoint.every=0", "task=sorting_solo")


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["separate", "value_head"])
def test_values_start_in_the_middle_and_learn(tmp_path: Path, critic: str) -> None:
    run = train(tmp_path, *BINS, *RANGE, *SHORT, f"critic={critic}", "critic.learning_rate=3e-3", "num_iterations=12")
    (name,) = {key.split("/")[0] for key in rows(run)[1] if key.endswith("value/loss")}
    first, last = rows(run)[1], rows(run)[-1]
    assert first[f"{name}/targets/value"] == pytest.approx(0.5, abs=1e-5)  # a zero head: all bins alike
    assert last[f"{name}/value/loss"] < first[f"{name}/value/loss"] <= math.log(11) + 1e-3
    assert first[f"{name}/value/clamped_fraction"] == 0.0
    distances = [abs(row[f"{name}/targets/value"] - row[f"{name}/targets/return"]) for row in (first, last)]
    assert distances[1] < 0.7 * distances[0]


@pytest.mark.slow
def test_bins_of_normalised_returns(tmp_path: Path) -> None:
    scaled = ("reward.processor=[scale,shift]", "reward.scale=100", "reward.shift=500", "critic.popart_beta=0.9")
    with open_trainer(tmp_path, *BINS, *SHORT, *scaled) as trainer:
        trainer.step()
        trainer.step()
        (agent,) = trainer.state.team.values()
        (rollout,) = experience_of(trainer, 2).rollouts.values()
        values = agent.values(rollout)[0][rollout.response_mask]
        assert agent.critic is not None
        assert agent.critic.return_moments is not None
        assert ((values - agent.critic.return_moments.mean).abs() < 5 * agent.critic.return_moments.std).all()
        assert values.min() > 400


@pytest.mark.slow
def test_resume_is_exact_and_ranks_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_resume_is_exact(tmp_path, monkeypatch, *stopping_reward(tmp_path), *BINS, *RANGE)
    short = ("num_iterations=2", "evaluation.every=0", "checkpoint.every=0", "deepspeed=zero3")
    assert_two_ranks_agree(tmp_path, *BINS, *RANGE, *short)


@pytest.mark.slow
def test_saved_critic_has_its_bins(tmp_path: Path) -> None:
    run = train(tmp_path, *BINS, *RANGE, *SHORT)
    checkpoint = newest_intact_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    (folder,) = checkpoint.glob("*/critic")
    saved = ValueModel.from_pretrained(folder)
    values = saved.value_head(saved.backbone(input_ids=torch.arange(5, 13)[None]).last_hidden_state)
    assert values.shape == (1, 8)
    assert ((values > -0.5) & (values < 1.5)).all()
    small_config(tmp_path, *BINS, *RANGE, *SHORT, f"critic.warm_start={folder}")
    with (
        pytest.raises(PreflightError, match="its value_bins is 11, and that of this run is 12"),
        open_trainer(tmp_path, *BINS, *RANGE, *SHORT, f"critic.warm_start={folder}", "critic.value_bins=12"),
    ):
        pass
    with open_trainer(
        tmp_path, *BINS, *RANGE, *SHORT, f"critic.warm_start={folder}", "critic.bin_sigma=1.5"
    ) as trainer:
        (agent,) = trainer.state.team.values()
        assert agent.critic is not None
        assert agent.critic.engine.module.value_head.bins.sigma == 1.5


@pytest.mark.slow
@pytest.mark.parametrize("critic", [(), ("critic=value_head",), ("actor=tiny_lora", "critic=adapter")])
def test_bins_of_normalised_returns_need_normalisation(tmp_path: Path, critic: tuple[str, ...]) -> None:
    run = train(tmp_path, *BINS, *SHORT, *critic, "critic.popart_beta=0.9")
    checkpoint = newest_intact_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    (folder,) = checkpoint.glob("*/critic")
    same_range = ("critic.value_min=-5", "critic.value_max=5", f"critic.warm_start={folder}")
    with (
        pytest.raises(PreflightError, match=r"its bins are of returns normalised by critic\.popart_beta"),
        open_trainer(tmp_path, *BINS, *SHORT, *critic, *same_range),
    ):
        pass


@pytest.mark.slow
def test_logits_are_not_rescaled_and_clamped_returns_are_counted(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *BINS, *SHORT, "critic.popart_beta=0.5") as trainer:
        (name,) = trainer.state.team
        learner = trainer.state.team[name].critic
        assert learner is not None
        head = learner.engine.module.value_head
        with torch.no_grad():
            head.out.bias.normal_()
        before = head.out.bias.clone()
        targets, _ = trainer.state.algorithm.compute_targets(trainer.state.team, experience_of(trainer))
        moments = learner.return_moments
        update_normalization(learner, targets)
        assert learner.return_moments != moments
        assert torch.equal(head.out.bias, before)
    narrow = ("critic.value_min=0.2", "critic.value_max=0.8", "num_iterations=1")
    run = train(tmp_path, *BINS, *SHORT, *narrow, "algorithm.critic_gae_lambda=1.0")
    assert 0 < rows(run)[1][f"{name}/value/clamped_fraction"] < 1
