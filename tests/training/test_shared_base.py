"""Adapters on one frozen base: only a learner's own adapter changes, checkpoints, and agreement of ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from folders import model_folder
from safetensors.torch import load_file
from small import (
    assert_resume_is_exact,
    assert_two_ranks_agree,
    experience_of,
    new_run,
    open_trainer,
    rows,
    small_config,
    stopping_reward,
    train,
)
from torch import Tensor
from transformers import AutoModelForCausalLM

from ippo_cli.config.errors import ConfigError, Preempted
from ippo_cli.evaluation.evaluate_run import evaluate_run
from ippo_cli.planning.model_specs import read_model_specs
from ippo_cli.runs.checkpoint_files import newest_intact_checkpoint
from ippo_cli.tasks.task import load_task
from ippo_cli.training.minibatches import iterate_steps
from ippo_cli.training.process import run_training
from ippo_cli.training.trainer import Trainer
from ippo_cli.training.update import update_learner
from ippo_cli.types import StepContext

LORA = ("actor=tiny_lora", "actor.rank=4", "critic=adapter", "critic.rank=4")
BASE = (*LORA, "team=shared_base")
SHORT = ("num_iterations=2", "evaluation.every=0", "checkpoint.every=0", "actor.warmup_iterations=0")


def checkpoint_of(folder: Path) -> Path:
    found = newest_intact_checkpoint(folder / "checkpoints")
    assert found is not None
    return found


def adapters(folder: Path, agents: tuple[str, ...] = ("low", "high")) -> dict[str, Tensor]:
    """Every adapter and value head of the newest checkpoint, by agent, role and name."""
    found: dict[str, Tensor] = {}
    for agent in agents:
        for role in ("actor", "critic"):
            place = checkpoint_of(folder) / agent / role
            place = place / "adapter" if (place / "adapter").is_dir() else place
            files = [place / "adapter_model.safetensors", place / "value_head" / "model.safetensors"]
            for file in files[: 2 if role == "critic" else 1]:
                found |= {f"{agent}/{role}/{name}": tensor for name, tensor in load_file(file).items()}
    return found


def weights(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    assert one
    return all(torch.equal(one[name], other[name]) for name in one)


def played(trainer: Trainer) -> tuple[dict, dict, StepContext]:
    experience = experience_of(trainer)
    targets, _ = trainer.state.algorithm.compute_targets(trainer.state.team, experience)
    return dict(experience.rollouts), dict(targets), StepContext(seed=0, iteration=0, num_iterations=2)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["zero0", "zero2"])
def test_learner_changes_only_its_adapter(tmp_path: Path, stage: str) -> None:
    with open_trainer(tmp_path, *BASE, *SHORT, "algorithm.kl.loss.coef=0.1", f"deepspeed={stage}") as trainer:
        team = trainer.state.team
        assert [(one.name, one.stage) for one in team.learners] == [
            ("low", "policy"),
            ("low", "value"),
            ("high", "policy"),
            ("high", "value"),
        ]
        base = team["low"].policy.engine.module.base
        assert base is team["high"].policy.engine.module.base is team["low"].critic.engine.module.adapter.base
        assert team["low"].reference.lm is base.lm
        rollouts, targets, context = played(trainer)
        for learner in team.learners:
            modules = [one.engine.module for one in team.learners]
            before, own = weights(base.lm), [weights(module) for module in modules]
            update_learner(learner, iterate_steps(learner, rollouts, targets, context), context)
            assert [equal(weights(module), then) for module, then in zip(modules, own, strict=True)] == [
                one is not learner for one in team.learners
            ]
            after = weights(base.lm)
            changed = {name for name in before if not torch.equal(before[name], after[name])}
            assert changed
            name = learner.engine.module.adapter.name
            assert all(f".{name}." in weight for weight in changed)


@pytest.mark.slow
def test_agents_with_equal_seeds_and_data_stay_equal(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *BASE, *SHORT) as trainer:
        team = trainer.state.team
        for iteration in range(2):
            experience = experience_of(trainer, iteration)
            targets, _ = trainer.state.algorithm.compute_targets(team, experience)
            same = {name: experience.rollouts["low"] for name in team}
            context = StepContext(seed=0, iteration=iteration, num_iterations=2)
            for learner in team.learners:
                steps = iterate_steps(learner, same, {name: targets["low"] for name in team}, context)
                update_learner(learner, steps, context)
            one, other = (weights(team[name].policy.engine.module) for name in team)
            assert equal(one, other)
            assert equal(*(weights(team[name].critic.engine.module) for name in team))
        assert any(float(tensor.norm()) > 0 for name, tensor in one.items() if name.endswith("B.weight"))


@pytest.mark.slow
@pytest.mark.parametrize("team", ["shared_base", "independent", "shared_policy"])
def test_reference_is_the_initial_policy(tmp_path: Path, team: str) -> None:
    folder = train(tmp_path, *LORA, f"team={team}", *SHORT, "algorithm.kl.reward.coef=0.1")
    first, last = rows(folder)[1:]
    for agent in ("low", "high"):
        assert abs(first[f"{agent}/kl/reference"]) < 1e-6
        assert abs(last[f"{agent}/kl/reference"]) > 1e-5
    holders = {"shared_policy": ["shared"]}.get(team, ["low", "high"])
    assert {file.stem for file in (folder / "initial").glob("*.json")} == (
        {"low", "high"} if team == "independent" else {"shared"}
    )
    assert {path.name for path in checkpoint_of(folder).iterdir() if path.is_dir()} == set(holders)


@pytest.mark.slow
def test_partially_shared_bases(tmp_path: Path) -> None:
    third = ["++task.agents={mid:{}}", "task.agents.mid.template='{letters}|'", "task.agents.mid.answer='{low}'"]
    with open_trainer(tmp_path, *BASE, *SHORT, *third, "++team.groups={pair:[low,high]}") as trainer:
        base = {name: agent.policy.engine.module.base for name, agent in trainer.state.team.items()}
        assert base["low"] is base["high"] is not base["mid"]
        assert trainer.collector.generator.batch_groups(trainer.collector.formats) == [("low", "high"), ("mid",)]
        assert {file.stem for file in (trainer.run.folder / "initial").glob("*.json")} == {"pair", "mid"}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["true", "false"])
@pytest.mark.parametrize("weights_kept", ["adapter", "full"])
def test_every_checkpoint_kind_resumes_and_evaluates(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    weights_kept: str,
    optimizer: str,
) -> None:
    monkeypatch.delenv("STOP_AT_CALL", raising=False)
    keys = [*BASE, *SHORT, *stopping_reward(tmp_path), "algorithm.kl.reward.coef=0.1", "actor.lr_schedule=cosine"]
    keys += [f"checkpoint.weights={weights_kept}", f"checkpoint.optimizer={optimizer}"]
    config, folder = new_run(tmp_path, *keys)
    monkeypatch.setenv("STOP_AT_CALL", "4")  # the second iteration's, after two of the evaluation
    with pytest.raises(Preempted):
        run_training(config, folder, resumed=False)
    monkeypatch.delenv("STOP_AT_CALL")
    stopped = adapters(folder)
    assert {file.name for file in checkpoint_of(folder).glob("low/engine_*")} == (
        {"engine_policy", "engine_value"} if optimizer == "true" else set()
    )
    copy = shutil.copytree(folder, tmp_path / "copy")
    capsys.readouterr()
    run_training(config, folder, resumed=True)
    anew = "has no optimizer states: optimizers are reinitialised" in capsys.readouterr().out
    assert anew is (optimizer == "false")
    if optimizer == "true":
        whole = train(tmp_path, *keys)
        assert rows(folder) == rows(whole)
        assert equal(adapters(folder), adapters(whole))
    else:  # resumed with learning rate 0: the weights are the saved ones
        still = [*keys, "actor.learning_rate=0", "critic.learning_rate=0"]
        run_training(small_config(tmp_path, *still)[0], copy, resumed=True)
        assert rows(copy)[-1]["iteration"] == 2
        assert equal(adapters(copy), stopped)
    actor = checkpoint_of(folder) / "low" / "actor"
    assert (actor / "config.json").is_file() is (weights_kept == "full")
    score = evaluate_run(config, folder, "latest", []).read_text()
    expected = json.loads((folder / "run.json").read_text())["evaluation"]["last"]
    assert json.loads(score)["greedy/score"] == pytest.approx(expected["greedy/score"], abs=0.15)  # rewards are noisy
    assert json.loads(evaluate_run(config, folder, "initial", []).read_text())["iteration"] == 0
    if weights_kept == "full":
        AutoModelForCausalLM.from_pretrained(actor)
        loaded = ["actor=full", f"actor.model={actor}", "actor.dtype=fp32", "critic=separate"]
        loaded.append(f"critic.warm_start={actor.parent / 'critic'}")
        with open_trainer(tmp_path, *SHORT, *loaded) as trainer:
            low = trainer.state.team["low"]
            assert low.critic is not None
            holds(low.policy.engine.module.lm, actor / "model.safetensors")
            holds(low.critic.engine.module, actor.parent / "critic" / "model.safetensors")
    base = folder / "initial" / "shared"
    again = ["actor=lora", f"actor.model={base}", "actor.dtype=fp32", "actor.rank=4", f"actor.adapter={actor}"]
    again += ["critic=adapter", "critic.rank=4", f"critic.warm_start={actor.parent / 'critic'}", "team=shared_base"]
    with open_trainer(tmp_path, *SHORT, *again) as trainer:
        kept = adapters(folder, ("low",))
        for agent in trainer.state.team.values():  # both start from one adapter
            policy, critic = agent.policy.engine.module, agent.critic.engine.module  # type: ignore[union-attr]
            own = [*policy.adapter.parameters(), *critic.adapter.parameters(), critic.value_head.out.weight]
            assert all(any(torch.equal(tensor, stored) for stored in kept.values()) for tensor in own)


def holds(module: torch.nn.Module, file: Path) -> None:
    found, stored = module.state_dict(), load_file(file)
    assert stored
    assert all(torch.equal(found[name], tensor) for name, tensor in stored.items())


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["separate", "value_head"])
def test_full_models_resume_without_optimizer_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, critic: str
) -> None:
    keys = [*SHORT, *stopping_reward(tmp_path), "checkpoint.optimizer=false", f"critic={critic}"]
    keys += ["algorithm.kl.reward.coef=0.1"]
    config, folder = new_run(tmp_path, *keys)
    monkeypatch.setenv("STOP_AT_CALL", "4")
    with pytest.raises(Preempted):
        run_training(config, folder, resumed=False)
    monkeypatch.delenv("STOP_AT_CALL")
    files = [checkpoint_of(folder) / "low" / role / "model.safetensors" for role in ("actor", "critic")]
    stopped = [load_file(file) for file in files]
    still = small_config(tmp_path, *keys, "actor.learning_rate=0", "critic.learning_rate=0")[0]
    run_training(still, folder, resumed=True)
    files = [checkpoint_of(folder) / "low" / role / "model.safetensors" for role in ("actor", "critic")]
    assert checkpoint_of(folder).name == "step_00000002"
    assert all(equal(load_file(file), then) for file, then in zip(files, stopped, strict=True))
    assert abs(rows(folder)[-1]["low/kl/reference"]) > 1e-5  # the reference is the initial model, not the resumed one


@pytest.mark.core
@pytest.mark.slow
def test_two_ranks_train_adapters_as_one_rank(tmp_path: Path) -> None:
    keys = [*BASE, *SHORT, "algorithm=ppo", "algorithm.mini_batch_size=8", "algorithm.kl.reward.coef=0.1"]
    assert_two_ranks_agree(tmp_path, *keys, ranks=["deepspeed=zero2"])


@pytest.mark.slow
def test_bf16_adapters_resume_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        *BASE,
        *SHORT,
        *stopping_reward(tmp_path),
        "actor.dtype=bf16",
        "deepspeed=zero1",
        "actor.learning_rate=0.02",
    ]
    expected = adapters(assert_resume_is_exact(tmp_path, monkeypatch, *keys))
    assert {tensor.dtype for tensor in expected.values()} == {torch.bfloat16}
    assert any(float(tensor.abs().sum()) > 0 for name, tensor in expected.items() if "lora_B" in name)


@pytest.mark.slow
def test_gradient_checkpointing_changes_nothing(tmp_path: Path) -> None:
    keys = ["actor=tiny_lora", "actor.rank=4", "critic=value_head", "team=shared_base", *SHORT]
    plain, saving = (rows(train(tmp_path, *keys, f"actor.gradient_checkpointing={on}")) for on in ("false", "true"))
    for one, other in zip(plain, saving, strict=True):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-6, nan_ok=True)


def test_invalid_base_settings_are_rejected_before_loading(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model", "abcdefghij<>")
    keys = ["actor=lora", f"actor.model={model}", "actor.dtype=fp32", "critic=adapter"]
    for wrong, expected in {
        "actor.rank=64": r"actor.rank=64 exceeds the width of model.layers.0.\S+ of model .*; use at most 16",
        "critic.rank=64": "critic.rank=64 exceeds the width of",
        "actor.target_modules=[query]": "actor.target_modules names query, and model has no such module; .* q_proj",
    }.items():
        config, _ = small_config(tmp_path, *keys, "actor.rank=2", "critic.rank=2", wrong)
        with pytest.raises(ConfigError, match=expected):
            read_model_specs(config, load_task(config.task, config.seed))
