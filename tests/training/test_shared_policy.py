"""Agents with shared weights: one learner, trained on the rows of all its agents only."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small import (
    assert_resume_is_exact,
    assert_two_ranks_agree,
    experience_of,
    final_weights,
    open_trainer,
    rows,
    small_config,
    stopping_reward,
    train,
)

from ippo_cli.evaluation.evaluate_run import evaluate_run
from ippo_cli.models.layout import build_sequences
from ippo_cli.runs.checkpoint_files import newest_intact_checkpoint
from ippo_cli.types import Minibatch, StepContext

SHARED = "team=shared_policy"
SHORT = ("num_iterations=2", "evaluation.every=0", "checkpoint.every=0", "actor.warmup_iterations=0")
REWARD = """
def reward(examples, responses):
    return {"agent": {name: [text.count("a") / 3 for text in texts] for name, texts in responses.items()}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["separate", "value_head"])
def test_single_agent_group_equals_agent_alone(tmp_path: Path, critic: str) -> None:
    keys = ["task=sorting_solo", *SHORT, "algorithm=ppo", "algorithm.mini_batch_size=8", f"critic={critic}"]
    alone, shared = train(tmp_path, *keys), train(tmp_path, *keys, SHARED)
    renamed = [{key.replace("shared/", "solo/"): value for key, value in row.items()} for row in rows(shared)]
    assert renamed == rows(alone)
    assert any(key.startswith("shared/") for key in rows(shared)[-1])
    expected, found = final_weights(alone, ["solo"]), final_weights(shared, ["shared"])
    assert len(expected) == len(found) > 3
    assert all(torch.equal(found[name.replace("solo/", "shared/")], value) for name, value in expected.items())


@pytest.mark.slow
def test_group_shares_weights_and_others_are_unaffected(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(REWARD)
    third = ["++task.agents={mid:{}}", "task.agents.mid.template='{letters}|'", "task.agents.mid.answer='{low}'"]
    own = ["reward=function", f"reward.function={tmp_path / 'reward.py'}:reward", "reward.team_weight=0"]
    keys = [*SHORT, *third, *own, "reward.agent_weight=1"]
    independent = train(tmp_path, *keys)
    grouped = train(tmp_path, *keys, SHARED, "++team.groups={pair:[low,high]}")
    expected, found = final_weights(independent, ["mid"]), final_weights(grouped, ["mid"])
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    for before, after in zip(rows(independent), rows(grouped), strict=True):
        mid = {key: value for key, value in before.items() if "mid/" in key}
        assert mid
        assert mid.items() <= after.items()
    checkpoint = newest_intact_checkpoint(grouped / "checkpoints")
    assert checkpoint is not None
    assert {folder.name for folder in checkpoint.iterdir() if folder.is_dir()} == {"pair", "mid"}
    assert {file.stem for file in (grouped / "initial").glob("*.json")} == {"pair", "mid"}
    pair, initial = final_weights(grouped, ["pair"]), load_file(grouped / "initial" / "pair" / "model.safetensors")
    assert all(not torch.equal(pair[f"pair/actor/{name}"], value) for name, value in initial.items())
    config, _ = small_config(tmp_path, *keys, SHARED, "++team.groups={pair:[low,high]}")
    written = json.loads(evaluate_run(config, grouped, "latest", []).read_text())
    assert written["models"]["low"] == written["models"]["high"] != written["models"]["mid"]
    last = json.loads((grouped / "run.json").read_text())["evaluation"]["last"]
    assert {key: last[key] for key in written if key.startswith("sampled/")} == {
        key: value for key, value in written.items() if key.startswith("sampled/")
    }


class ModuleEngine:
    """Calls a module without DeepSpeed's engine, so that `torch.autograd.grad` can be used."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


@pytest.mark.slow
def test_gradient_equals_sum_over_agents(tmp_path: Path) -> None:
    cut = ["rollout.max_new_tokens=6", "rollout.temperature=2.0", "deepspeed.micro_batch_tokens=64"]
    with open_trainer(tmp_path, SHARED, *SHORT, *cut, "critic=value_head") as trainer:
        low, high = trainer.state.team["low"], trainer.state.team["high"]
        assert low.policy is high.policy
        (learner,) = trainer.state.team.learners
        assert (learner.name, learner.agent_names, learner.mini_batch_size) == ("shared", ("low", "high"), 32)
        experience = experience_of(trainer)
        targets, _ = trainer.state.algorithm.compute_targets(trainer.state.team, experience)
        masks = [of.loss_mask for of in targets.values()]
        tokens, sequences = sum(int(mask.sum()) for mask in masks), sum(int(mask.any(dim=1).sum()) for mask in masks)
        context = StepContext(seed=0, iteration=0, num_iterations=2)
        parameters, apart = list(learner.engine.module.parameters()), []
        for name in ("low", "high"):  # each agent's rows separately, divided by the total
            batch = Minibatch(
                rollout=experience.rollouts[name],
                targets=targets[name],
                num_tokens=tokens,
                num_sequences=sequences,
                num_values=tokens,
                num_value_sequences=sequences,
                agent=torch.zeros(16).long(),
            )
            read = build_sequences(batch.rollout, torch.arange(16), packed=False, final=False)
            losses = learner.objective.losses(ModuleEngine(learner.engine.module), read, batch, context)
            total = torch.stack([loss.total for loss in losses.values()]).sum()
            apart.append(torch.cat([part.flatten() for part in torch.autograd.grad(total, parameters)]))
        trainer.step()
        row = trainer.state.progress.row
        assert row is not None
        assert row["shared/joint/steps"] == 1
        assert row["shared/joint/grad_norm"] == pytest.approx(float((apart[0] + apart[1]).norm()), rel=1e-5)
        assert all(float(own.norm()) != pytest.approx(row["shared/joint/grad_norm"], rel=0.05) for own in apart)


@pytest.mark.slow
def test_group_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [SHARED, *SHORT, *stopping_reward(tmp_path), "algorithm.kl.reward.coef=0.1", "actor.lr_schedule=cosine"]
    assert_resume_is_exact(tmp_path, monkeypatch, *keys)


@pytest.mark.core
@pytest.mark.slow
def test_two_ranks_train_group_as_one_rank(tmp_path: Path) -> None:
    keys = [SHARED, *SHORT, "algorithm=ppo", "algorithm.mini_batch_size=8", "rollout.zero3_gather=all"]
    assert_two_ranks_agree(tmp_path, *keys, ranks=["deepspeed=zero3"])


@pytest.mark.slow
@pytest.mark.parametrize(("team", "whole_turns"), [("independent", False), ("shared_policy", True)])
def test_turn_actions_apply_to_all_agents_of_a_policy(team: str, whole_turns: bool, tmp_path: Path) -> None:
    keys = ["algorithm=turn_ppo", "algorithm.credit=auto", "rollout.temperature=3.0", f"team={team}"]
    with open_trainer(tmp_path, *SHORT, "algorithm.mini_batch_size=16", *keys) as trainer:
        experience = experience_of(trainer)
        high = experience.rollouts["high"]
        last = torch.arange(high.turn.shape[1]) == high.response_mask.sum(dim=1, keepdim=True) - 1
        several = replace(high, turn=torch.where(last & high.response_mask.cumsum(dim=1).gt(1), 1, high.turn))
        assert (several.turn == 1).any()
        scores = experience.scores["high"]
        paid = replace(scores, score=scores.score.repeat(1, 2), measured=scores.measured.repeat(1, 2))
        experience = replace(
            experience,
            rollouts={**experience.rollouts, "high": several},
            scores={**experience.scores, "high": paid},
        )
        targets, _ = trainer.state.algorithm.compute_targets(trainer.state.team, experience)
        values = targets["low"].value_mask.sum(dim=1)
        assert (int(values.max()) == 1) is whole_turns
