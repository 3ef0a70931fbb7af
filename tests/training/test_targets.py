"""Targets from scores on real rollouts of small agents: places of rewards, truncation and KL."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from small import experience_of, open_trainer

from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.formulas import adaptive_kl_step, gae
from ippo_cli.runs.checkpoint_files import newest_intact_checkpoint
from ippo_cli.training.algorithm_state import AlgorithmState
from ippo_cli.training.targets import next_kl_coef

RAGGED = ["rollout.max_new_tokens=4", "rollout.temperature=2.0", "algorithm.advantage_normalization=false"]


def corridor(trainer):
    """Rollouts, scores and targets of the first iteration, and the KL coefficients for the next one."""
    experience = experience_of(trainer)
    targets, state = trainer.state.algorithm.compute_targets(trainer.state.team, experience)
    return experience.rollouts, experience.scores, targets, state.kl_coef


def raise_values(trainer):
    """A critic with constant value 0.25, which makes bootstraps visible."""
    for agent in trainer.state.team.values():
        with torch.no_grad():
            agent.critic.engine.module.value_head.out.bias.fill_(0.25)


@pytest.mark.slow
@pytest.mark.parametrize("truncation", ["none", "penalty", "soft_penalty", "mask", "bootstrap"])
def test_truncation_modes(tmp_path, truncation):
    keys = [f"algorithm.truncation={truncation}", "algorithm.gamma=0.9"]
    keys += ["algorithm.truncation_penalty=0.5"] if truncation.endswith("penalty") else []
    keys += ["algorithm.truncation_ramp=0.5"] if truncation == "soft_penalty" else []
    with open_trainer(tmp_path, *RAGGED, *keys) as trainer:
        raise_values(trainer)
        rollouts, scores, targets, _ = corridor(trainer)
        rollout, found = rollouts["low"], targets["low"]
        cut = ~rollout.finished
        assert 0 < cut.sum() < len(cut), "the test needs both kinds of rows"
        expected = torch.zeros_like(found.rewards)
        given = scores["low"].score[:, 0] - (0.5 * cut if truncation == "penalty" else 0.0)
        if truncation == "soft_penalty":  # the last two of four tokens
            share = ((rollout.response_mask.sum(dim=1) - 2) / 2).clamp(0.0, 1.0)
            assert {0.5, 1.0} <= set(share.tolist())
            given = given - 0.5 * torch.where(cut, 1.0, share)
        expected[torch.arange(len(cut)), rollout.length - 1] = given
        assert torch.equal(found.rewards, expected)
        assert torch.equal(found.final_values, torch.full_like(found.final_values, 0.25))
        own = rollout.response_mask & (rollout.finished[:, None] if truncation == "mask" else True)
        assert torch.equal(found.loss_mask, own)
        boosted = expected.clone()
        if truncation == "bootstrap":
            boosted[torch.arange(len(cut)), rollout.length - 1] += 0.9 * 0.25 * cut
        advantages, returns = gae(boosted, found.values, rollout.response_mask, gamma=0.9, gae_lambda=0.95)
        assert torch.allclose(found.advantages, advantages, atol=1e-6)
        assert torch.allclose(found.returns, returns, atol=1e-6)


@pytest.mark.slow
def test_advantages_are_whitened_over_trained_tokens(tmp_path):
    with open_trainer(tmp_path, *RAGGED[:2]) as trainer:
        raise_values(trainer)
        rollouts, _, targets, _ = corridor(trainer)
    for name, found in targets.items():
        kept = found.advantages[found.loss_mask].double()
        assert abs(float(kept.mean())) < 1e-6
        assert float(kept.std()) == pytest.approx(1.0, abs=1e-4)
        assert not found.advantages[~found.loss_mask].any()
        raw, _ = gae(found.rewards, found.values, rollouts[name].response_mask, gamma=1.0, gae_lambda=0.95)
        own = rollouts[name].response_mask
        assert torch.allclose(found.returns[own], (raw + found.values)[own], atol=1e-6)


@pytest.mark.slow
def test_turns_count_once_in_whitening(tmp_path):
    with open_trainer(tmp_path, "algorithm=turn_ppo", "algorithm.mini_batch_size=8", *RAGGED[:2]) as trainer:
        rollouts, _, targets, _ = corridor(trainer)
    for name, found in targets.items():
        lengths = rollouts[name].length
        assert len(set(lengths.tolist())) > 1, "the test needs responses of different lengths"
        by_turn = found.advantages[torch.arange(len(lengths)), lengths - 1].double()
        assert abs(float(by_turn.mean())) < 1e-6
        assert float(by_turn.std()) == pytest.approx(1.0, abs=1e-4)
        assert abs(float(found.advantages[found.loss_mask].mean())) > 1e-3, "tokens count their turn more than once"


@pytest.mark.slow
def test_kl_coef_updates_after_use_and_is_saved(tmp_path):
    keys = ["algorithm.kl.reward.coef=0.5", "algorithm.kl.reward.target=0.001", "algorithm.kl.reward.horizon=100"]
    with open_trainer(tmp_path, *RAGGED, *keys) as trainer:
        agent = trainer.state.team["low"]
        with torch.no_grad():  # the policy differs from its reference
            for parameter in agent.policy.engine.module.lm.get_output_embeddings().parameters():
                parameter.mul_(3.0)
        rollouts, scores, targets, kl_coef = corridor(trainer)
        rollout, found = rollouts["low"], targets["low"]
        kl = (rollout.logprobs - found.ref_logprobs) * rollout.response_mask
        assert kl.abs().max() > 0.01
        terminal = torch.zeros_like(found.rewards)
        terminal[torch.arange(len(kl)), rollout.length - 1] = scores["low"].score[:, 0]
        assert torch.allclose(found.rewards, terminal - 0.5 * kl, atol=1e-6)
        # Far from the target the error is clipped to 20 %: 1 + 0.2 * 16 samples / 100.
        sign = 1 if float((kl.sum(1) / rollout.response_mask.sum(1)).mean()) > 0.001 else -1
        assert kl_coef["low"] == pytest.approx(0.5 * (1 + sign * 0.2 * 16 / 100))
        assert kl_coef["high"] != 0.5
        again = corridor(trainer)
        assert torch.equal(again[2]["low"].rewards, found.rewards), "targets leave the coefficient as it was"
        assert again[3] == kl_coef
        trainer.state.algorithm.state = AlgorithmState(kl_coef=kl_coef)
        moved, _ = trainer.state.algorithm.compute_targets(trainer.state.team, experience_of(trainer))
        assert torch.allclose(moved["low"].rewards, terminal - kl_coef["low"] * kl, atol=1e-6)
        assert trainer.checkpoints.save(trainer.state)
        found = newest_intact_checkpoint(trainer.run.folder / "checkpoints")
    stored = json.loads((found / "state.json").read_text())
    assert stored["kl_coef"] == trainer.state.algorithm.state.kl_coef


@pytest.mark.slow
def test_kl_coef_uses_episodes_with_turns_only(tmp_path):
    keys = ["algorithm.kl.reward.coef=0.5", "algorithm.kl.reward.target=1.0", "algorithm.kl.reward.horizon=100"]
    with open_trainer(tmp_path, *RAGGED, *keys) as trainer:
        with torch.no_grad():
            for parameter in trainer.state.team["low"].policy.engine.module.lm.get_output_embeddings().parameters():
                parameter.mul_(3.0)
        experience = experience_of(trainer)
        rollout, spoke = experience.rollouts["low"], torch.arange(16) < 4
        silenced = replace(
            rollout,
            response_mask=rollout.response_mask & spoke[:, None],
            turn=rollout.turn.where(spoke[:, None], -1),
            logprobs=rollout.logprobs.where(spoke[:, None], 0.0),
        )
        scores = replace(experience.scores["low"], valid=spoke)
        quiet = replace(
            experience,
            rollouts={**experience.rollouts, "low": silenced},
            scores={**experience.scores, "low": scores},
        )
        targets, _ = trainer.state.algorithm.compute_targets(trainer.state.team, quiet)
        kl = (silenced.logprobs - targets["low"].ref_logprobs)[:4] * silenced.response_mask[:4]
        mean = float((kl.sum(1) / silenced.response_mask[:4].sum(1)).mean())
        settings = trainer.state.algorithm.config.kl.reward
        settings.target = 0.95 * mean  # close enough that the step is not clipped
        _, state = trainer.state.algorithm.compute_targets(trainer.state.team, quiet)
        assert state.kl_coef["low"] == pytest.approx(next_kl_coef(0.5, mean, settings, num_samples=4), rel=1e-6)
        mute = replace(silenced, response_mask=silenced.response_mask & False, turn=torch.full_like(silenced.turn, -1))
        _, state = trainer.state.algorithm.compute_targets(
            trainer.state.team, replace(quiet, rollouts={**quiet.rollouts, "low": mute})
        )
        assert state.kl_coef["low"] == 0.5, "whoever says nothing has no divergence to follow"


ADAPTIVE = load_config(
    ["algorithm.kl.reward.coef=0.01", "algorithm.kl.reward.target=0.1", "algorithm.kl.reward.horizon=10000"]
)


@given(
    horizon=st.integers(1, 2000),
    buffer=st.integers(1, 4096),
    divergences=st.lists(st.floats(-5.0, 50.0), min_size=1, max_size=8),
)
@example(horizon=100, buffer=512, divergences=[0.0])
@example(horizon=103, buffer=512, divergences=[0.0] * 400)
def test_adaptive_kl_coef_stays_positive(horizon, buffer, divergences):
    ADAPTIVE.rollout.buffer_size = buffer
    settings = ADAPTIVE.algorithm.kl.reward
    settings.horizon = horizon
    if buffer >= 5 * horizon:
        with pytest.raises(ConfigError, match=rf"^algorithm\.kl\.reward\.horizon={horizon} lets one buffer"):
            check_config(ADAPTIVE, 1)
        assert adaptive_kl_step(0.01, 0.0, target=0.1, horizon=horizon, num_samples=buffer) < 1e-15
        return
    check_config(ADAPTIVE, 1)
    coef = settings.coef
    for divergence in divergences:
        published = adaptive_kl_step(coef, divergence, target=0.1, horizon=horizon, num_samples=buffer)
        coef = next_kl_coef(coef, divergence, settings, num_samples=buffer)
        assert coef > 0.0
        assert coef == published or published < sys.float_info.min
    assert next_kl_coef(coef, math.inf, settings, num_samples=buffer) > coef, "it can always grow again"
