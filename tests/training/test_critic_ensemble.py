"""`critic.ensemble`: critics on disjoint prompts, in runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small import (
    all_weights,
    assert_resume_is_exact,
    assert_two_ranks_agree,
    experience_of,
    final_weights,
    open_trainer,
    rows,
    stopping_reward,
    train,
)

from ippo_cli.agents.learner import EnsembleMember
from ippo_cli.config.errors import ConfigError
from ippo_cli.runs.checkpoint_files import newest_intact_checkpoint
from ippo_cli.training.trainer import Trainer

TWO = ("critic.ensemble=2", "rollout.num_generations=2", "actor.warmup_iterations=0", "algorithm.entropy_coef=0.05")
SHORT = ("num_iterations=2", "evaluation.every=0", "checkpoint.every=0")


def test_members_have_disjoint_prompts(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *TWO, *SHORT, "task=sorting_solo") as trainer:
        experience, targets = trainer.step()
        (target,) = targets.values()
        (agent,) = trainer.state.team.values()
        members = [critic.member for critic in agent.critics]
        assert members == [EnsembleMember(0, 2, 2), EnsembleMember(1, 2, 2)]
        kept = [member.select_rows(target, experience.batch.index).sample_counts for member in members if member]
        assert torch.equal(kept[0] + kept[1], target.sample_counts)
        assert kept[0].view(-1, 2).tolist() == [[1, 1], [0, 0]] * 4  # both responses to a prompt
        # The next values: the mean of critics that have seen different data.
        (rollout,) = experience_of(trainer, 1).rollouts.values()
        (one, _), (two, _) = agent.member_values(rollout)
        mask = rollout.response_mask
        assert (one - two)[mask].abs().min() > 0
        torch.testing.assert_close(agent.values(rollout)[0], (one + two) / 2)
        check_masks(trainer)


def check_masks(trainer: Trainer) -> None:
    """The tokens with the lowest and highest disagreement are masked."""
    (agent,) = trainer.state.team.values()
    agent.mask_agreement, agent.mask_entropy = 0.25, 0.5
    experience = experience_of(trainer, 1)
    (target,) = trainer.state.algorithm.compute_targets(trainer.state.team, experience)[0].values()
    agent.mask_agreement = agent.mask_entropy = None
    (plain,) = trainer.state.algorithm.compute_targets(trainer.state.team, experience)[0].values()
    std, mask = target.value_std, target.loss_mask
    masked, silent = mask & (target.advantages == 0) & (plain.advantages != 0), mask & ~target.entropy_mask
    count = int(mask.sum())
    assert 0 < int(masked.sum()) <= count // 4  # tokens with the same prefix have the same values
    assert 0 < int(silent.sum()) <= count // 2
    assert std[masked].max() < std[mask & ~masked].min()
    assert std[silent].min() > std[mask & ~silent].max()
    assert torch.equal(target.advantages[~masked], plain.advantages[~masked])
    assert plain.entropy_mask.all()


@pytest.mark.slow
def test_entropy_mask_changes_the_update(tmp_path: Path) -> None:
    masked = train(tmp_path, *TWO, *SHORT, "critic.mask_entropy=0.5")
    plain = train(tmp_path, *TWO, *SHORT)
    first, last = rows(masked)[1:]
    assert first["low/value/masked_entropy_fraction"] == 0  # equal critics at first
    assert 0.1 < last["low/value/masked_entropy_fraction"] <= 0.5
    assert last["low/value/disagreement"] == rows(plain)[2]["low/value/disagreement"] > 0
    assert any(not torch.equal(value, final_weights(plain)[name]) for name, value in final_weights(masked).items())


@pytest.mark.slow
def test_resume_is_exact_and_ranks_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masked = (*TWO, "critic.mask_agreement=0.2")
    whole = assert_resume_is_exact(tmp_path, monkeypatch, *stopping_reward(tmp_path), *masked, "critic.popart_beta=0.9")
    critics = {name.split("/")[0] for name in all_weights(whole) if "/critic/" in name}
    assert critics == {"low", "low_critic2", "high", "high_critic2"}
    assert_two_ranks_agree(tmp_path, *masked, *SHORT)


@pytest.mark.slow
def test_smaller_critic_with_the_same_tokenizer(tmp_path: Path) -> None:
    solo = (*SHORT, "task=sorting_solo", "num_iterations=1")
    large = train(tmp_path, *solo, "actor.hidden_size=64")
    small, printable = train(tmp_path, *solo), train(tmp_path, *solo, "actor.alphabet=printable")
    actor, critic, wrong = (next((run / "initial").glob("*/config.json")).parent for run in (large, small, printable))
    loaded = ("actor=full", f"actor.model={actor}", *SHORT, "task=sorting_solo")
    run = train(tmp_path, *loaded, f"critic.model={critic}", *TWO)
    folder = newest_intact_checkpoint(run / "checkpoints")
    assert folder is not None
    (saved,) = folder.glob("*_critic2/critic/model.safetensors")
    assert load_file(saved)["value_head.out.weight"].shape == (1, 32)
    with pytest.raises(ConfigError, match=r"critic\.model=.* (vocabulary|embedding)"):
        train(tmp_path, *loaded, f"critic.model={wrong}")
