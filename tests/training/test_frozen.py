"""A frozen agent acts and is scored, but is neither trained nor saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small import final_weights, new_run, open_trainer, rows, small_config, stopping_reward, train

from ippo_cli.agents.initial import describe_source
from ippo_cli.config.errors import Preempted
from ippo_cli.evaluation.evaluate_run import evaluate_run
from ippo_cli.models.actor import Policy
from ippo_cli.planning.memory import estimate_memory
from ippo_cli.planning.model_specs import read_model_specs
from ippo_cli.runs.checkpoint_files import newest_intact_checkpoint
from ippo_cli.tasks.task import load_task
from ippo_cli.training.process import run_training

FROZEN = "task.agents.high.frozen=true"
ON_A_BASE = ("actor=tiny_lora", "actor.rank=4", "critic=adapter", "critic.rank=4", "team=shared_base")
SHORT = ("num_iterations=2", "evaluation.every=0", "checkpoint.every=0", "actor.warmup_iterations=0")


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [(), ("team=shared_policy",), ("critic=value_head", "algorithm.kl.loss.coef=0.1"), ON_A_BASE]
)
def test_frozen_weights_do_not_change(overrides: tuple[str, ...], tmp_path: Path) -> None:
    holder = "shared" if "team=shared_policy" in overrides else "low"
    with open_trainer(tmp_path, *SHORT, FROZEN, *overrides) as trainer:
        team = trainer.state.team
        assert (list(team), list(team.frozen), list(team.generation_policies)) == (["low"], ["high"], ["low", "high"])
        assert {learner.name for learner in team.learners} == {holder}
        policy = team.frozen["high"].policy
        assert isinstance(policy, Policy)
        initial = load_file(trainer.run.folder / "initial" / "high" / "model.safetensors")
        before = [weight.detach().clone() for weight in team["low"].policy.engine.module.parameters()]
        for _ in range(2):
            experience, _ = trainer.step()
        assert all(torch.equal(dict(policy.lm.named_parameters())[name], value) for name, value in initial.items())
        after = team["low"].policy.engine.module.parameters()
        assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))
        row = trainer.state.progress.row
        assert row is not None
        assert row["high/score/mean"] == pytest.approx(float(experience.scores["high"].raw.mean()), rel=1e-5)
        assert not any(key.startswith(("high/policy", "high/value", "high/targets", "high/joint")) for key in row)


@pytest.mark.slow
def test_run_with_frozen_agent_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOP_AT_CALL", raising=False)
    keys = [FROZEN, *SHORT, *stopping_reward(tmp_path)]
    whole = train(tmp_path, *keys)
    config, folder = new_run(tmp_path, *keys)
    monkeypatch.setenv("STOP_AT_CALL", "3")
    with pytest.raises(Preempted):
        run_training(config, folder, resumed=False)
    began = describe_source(folder / "initial" / "high", None)["sha256"]
    monkeypatch.delenv("STOP_AT_CALL")
    run_training(config, folder, resumed=True)
    assert rows(folder) == rows(whole)
    assert describe_source(folder / "initial" / "high", None)["sha256"] == began
    expected, found = final_weights(whole, ["low"]), final_weights(folder, ["low"])
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    checkpoint = newest_intact_checkpoint(folder / "checkpoints")
    assert checkpoint is not None
    assert {path.name for path in checkpoint.iterdir() if path.is_dir()} == {"low"}
    written = json.loads(evaluate_run(config, folder, "latest", []).read_text())
    assert written["models"]["high"]["model"] == str(folder / "initial" / "high")
    assert written["models"]["low"]["model"] == str(checkpoint / "low" / "actor")


def test_frozen_agent_needs_no_gradient_memory(tmp_path: Path) -> None:
    sizes = {}
    for frozen in ("true", "false"):
        config, _ = small_config(tmp_path, f"task.agents.high.frozen={frozen}")
        material = read_model_specs(config, load_task(config.task, config.seed))
        sizes[frozen] = estimate_memory(config, material.shapes, 1, 16, "cpu")
    assert [model.name for model in sizes["true"].trained] == ["low actor", "low critic"]
    (actor,) = sizes["true"].frozen
    assert (actor.name, actor.weight_bytes) == ("high actor", 4 * actor.shape.parameters)
    assert sizes["false"].frozen == ()
    assert sizes["true"].resident_bytes < sizes["false"].resident_bytes
