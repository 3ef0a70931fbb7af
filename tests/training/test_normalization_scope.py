"""`algorithm.normalization_scope`: one mean and deviation per agent or for the team; spikes of gradient norms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import (
    assert_resume_is_exact,
    assert_two_ranks_agree,
    experience_of,
    open_trainer,
    rows,
)

from ippo_cli.runs.checkpoint_files import newest_intact_checkpoint

REWARD = '''
import os, signal
calls = 0

def reward(examples, responses):
    """Scores of `high` are 20 times those of `low`, with another mean. Asks the run to stop at a chosen call."""
    global calls
    calls += 1
    if str(calls) == os.environ.get("STOP_AT_CALL"):
        os.kill(os.getpid(), signal.SIGTERM)
    kinds = {name: [len(set(text)) + len(text) / 7 for text in responses[name]] for name in ("low", "high")}
    return {"agent": {"low": kinds["low"], "high": [20 * score - 3 for score in kinds["high"]]}}
'''
TEAM = "algorithm.normalization_scope=team"
GRPO = ("algorithm=grpo", "rollout.num_generations=4")
PLUS = ("algorithm=reinforce_plus_plus", "algorithm.kl.reward.coef=0")


def overrides(root: Path, *more: str) -> list[str]:
    root.mkdir(parents=True, exist_ok=True)
    (root / "reward.py").write_text(REWARD)
    return ["reward=function", f"reward.function={root / 'reward.py'}:reward", "reward.agent_weight=1", *more]


def targets_of(root: Path, *more: str):
    """The targets of the first buffer at `agent` and at `team`, and the experience."""
    with open_trainer(root, *overrides(root, *more)) as trainer:
        experience, found = experience_of(trainer), []
        for scope in ("agent", "team"):
            algorithm = trainer.state.algorithm
            config = replace(algorithm.config, normalization_scope=type(algorithm.config.normalization_scope)(scope))
            found.append(replace(algorithm, config=config).compute_targets(trainer.state.team, experience)[0])
    return *found, experience


def test_whitening_over_the_team(tmp_path: Path) -> None:
    agent, team, _ = targets_of(tmp_path, *PLUS)
    for own in agent.values():
        assert float(own.advantages[own.loss_mask].std()) == pytest.approx(1.0, abs=1e-4)
    # Second implementation: one whitening of the concatenated returns.
    masks = {name: own.loss_mask for name, own in team.items()}
    whole = torch.cat([own.returns[masks[name]] for name, own in team.items()]).double()
    for name, own in team.items():
        expected = (own.returns.double() - whole.mean()) / whole.std()
        assert torch.allclose(own.advantages[masks[name]].double(), expected[masks[name]], atol=1e-5)
        assert torch.equal(own.returns, agent[name].returns)
    spread = {name: float(own.advantages[own.loss_mask].std()) for name, own in team.items()}
    assert spread["high"] > 5 * spread["low"], "advantages of the agent with small rewards nearly vanish"


def test_groups_of_the_team(tmp_path: Path) -> None:
    agent, team, experience = targets_of(tmp_path, *GRPO)
    scores = torch.stack([experience.scores[name].score.sum(dim=1) for name in ("low", "high")]).double()
    groups = scores.view(2, -1, 4)
    own_std, own_mean = groups.std(dim=2, keepdim=True), groups.mean(dim=2, keepdim=True)
    joint = groups.transpose(0, 1).flatten(1)
    std, mean = joint.std(dim=1)[None, :, None], joint.mean(dim=1)[None, :, None]
    for place, name in enumerate(("low", "high")):
        first = [own[name].advantages[:, 0].double() for own in (agent, team)]
        assert torch.allclose(first[0], ((groups - own_mean) / (own_std + 1e-6))[place].flatten(), atol=1e-4)
        assert torch.allclose(first[1], ((groups - mean) / (std + 1e-6))[place].flatten(), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("preset", [GRPO, PLUS], ids=["group", "whitening"])
def test_one_rank_and_two_agree(tmp_path: Path, preset: tuple[str, ...]) -> None:
    keys = overrides(
        tmp_path, *preset, TEAM, "num_iterations=2", "evaluation.every=0", "checkpoint.every=0", "deepspeed=zero2"
    )
    assert_two_ranks_agree(tmp_path, *keys)


@pytest.mark.slow
def test_spikes_are_counted_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ippo_cli.agents.grad_norms.MIN_STEPS", 2)
    monkeypatch.setattr("ippo_cli.agents.grad_norms.SPIKE_FACTOR", 1.1)
    keys = overrides(tmp_path, *PLUS, TEAM, "algorithm.mini_batch_size=4", "checkpoint.every=1")
    whole = assert_resume_is_exact(tmp_path, monkeypatch, *keys)
    counts = [row["low/policy/grad_norm_spikes"] + row["high/policy/grad_norm_spikes"] for row in rows(whole)[1:]]
    assert sum(counts) > 0
    last = newest_intact_checkpoint(whole / "checkpoints")
    assert last is not None
    norms = json.loads((last / "state.json").read_text())["grad_norms"]["low"]["policy"]
    assert len(norms) == 16
