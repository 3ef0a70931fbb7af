"""Update metrics by agent and turn, compared with separate forward passes of the policy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small import (
    assert_resume_is_exact,
    assert_two_ranks_agree,
    experience_of,
    open_trainer,
    stopping_reward,
)
from torch import Tensor

from ippo_cli.agents.agent import Agent
from ippo_cli.reporting.per_turn_metrics import logged_turn_counts
from ippo_cli.training.team_update import PlacedUpdates, update_team
from ippo_cli.types import Rollout, StepContext

CONTEXT = StepContext(seed=0, iteration=0, num_iterations=1)
TWO_TURNS = (
    "task.protocol=parallel",
    "task.num_turns=2",
    "task.agents.low.template='{letters}{heard}<'",
    "task.agents.high.template='{letters}{heard}>'",
    "rollout.max_new_tokens=4",
    "rollout.temperature=1.3",
    "task.eval_size=4",
    "evaluation.greedy=false",
    "num_iterations=2",
    "evaluation.every=1",
    "checkpoint.every=0",
    "deepspeed.micro_batch_tokens=64",
    "actor.warm_start_steps=40",  # until turns differ
)
ADAPTERS = ("team=shared_base", "actor=tiny_lora", "critic=adapter")


def entropies(agent: Agent, rollout: Rollout) -> Tensor:
    """Entropy of the policy before each action token, `[B, R]`."""
    found = torch.zeros_like(rollout.logprobs)
    with torch.no_grad():
        for part, sequences in agent.policy.iterate_sequences(rollout, final=False):
            output = agent.policy.engine(
                sequences, temperature=agent.temperature, chunk_tokens=agent.chunk_tokens, with_entropy=True
            )
            found[part, : output.entropy.shape[1]] = output.entropy
    return found.double()


@pytest.mark.slow
@pytest.mark.parametrize(
    "team", [(), ("team=shared_policy",), ("team=shared_policy", "critic=value_head"), ADAPTERS], ids=" ".join
)
def test_entropies_are_those_of_the_acting_policy(team: tuple[str, ...], tmp_path: Path) -> None:
    with open_trainer(tmp_path, *TWO_TURNS, *team) as trainer:
        members = trainer.state.team
        experience = experience_of(trainer)
        targets, _ = trainer.state.algorithm.compute_targets(members, experience)
        apart = {name: entropies(agent, experience.rollouts[name]) for name, agent in members.items()}
        turns = logged_turn_counts(members, experience.episodes, trainer.max_turns, 8)
        parts = update_team(PlacedUpdates(members, experience, CONTEXT, turns), targets, trainer.config)
        found = {key: value for part in parts for key, value in part.items()}
    for name, numbers in apart.items():
        rollout, mask = experience.rollouts[name], targets[name].loss_mask
        assert found[f"{name}/policy/entropy"] == pytest.approx(float(numbers[mask].mean()), rel=1e-5)
        by_turn = []
        for turn in (0, 1):
            there = mask & (rollout.turn == turn)
            by_turn.append(float(numbers[there].mean()))
            assert found[f"{name}/policy/entropy/turn/{turn + 1}"] == pytest.approx(by_turn[-1], rel=1e-5)
            assert found[f"{name}/policy/ratio/turn/{turn + 1}"] == pytest.approx(1.0, abs=1e-5)
        assert abs(by_turn[0] - by_turn[1]) > 2e-4 * by_turn[0]


OWN_WEIGHTS = (
    "team=shared_policy",
    "algorithm=ppo",
    "algorithm.mini_batch_size=8",
    "task.agents.low.reward.team_weight=0.5",
)


@pytest.mark.slow
def test_two_ranks_log_turn_metrics_as_one_rank(tmp_path: Path) -> None:
    one = assert_two_ranks_agree(tmp_path, *TWO_TURNS, *OWN_WEIGHTS)
    for row in one[1:]:
        assert row["low/score/mean"] == pytest.approx(row["high/score/mean"] / 2) != 0.0
        assert row["low/policy/entropy/turn/2"] != row["high/policy/entropy/turn/2"]
    for row in one:
        turns = [row[f"eval/sampled/low/score/turn/{turn}"] for turn in (1, 2)]
        assert sum(turns) == pytest.approx(row["eval/sampled/low/score"])
        assert row["eval/sampled/low/score"] == pytest.approx(row["eval/sampled/high/score"] / 2)


@pytest.mark.slow
def test_run_with_agent_weights_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_resume_is_exact(tmp_path, monkeypatch, *TWO_TURNS, *OWN_WEIGHTS, *stopping_reward(tmp_path))
