"""`actor.reference`: the reference of KL terms, and references that are updated during training."""

from __future__ import annotations

from pathlib import Path

import pytest
from folders import model_folder
from safetensors.torch import load_file
from small import new_run, rows, small_config, stopping_reward, train

from ippo_cli.config.errors import ConfigError, IppoError, Preempted, ResumeError
from ippo_cli.config.schema import Config
from ippo_cli.planning.memory import estimate_memory
from ippo_cli.planning.model_specs import read_model_specs
from ippo_cli.runs.checkpoint_files import newest_intact_checkpoint
from ippo_cli.training.process import run_training

LETTERS = "abcdefghijklmnopqrstuvwxyz= "
SHORT = ("num_iterations=1", "evaluation.every=0", "rollout.max_new_tokens=4", "algorithm.kl.reward.coef=0.1")
LEARNS = ("actor.learning_rate=0.01", "actor.warmup_iterations=0")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model") / "model", LETTERS)


def lora(model: Path) -> tuple[str, ...]:
    return ("actor=lora", f"actor.model={model}", "actor.dtype=fp32", "actor.rank=4", *LEARNS)


def full(model: Path) -> tuple[str, ...]:
    return ("actor=full", f"actor.model={model}", "actor.dtype=fp32", "critic=value_head", *LEARNS)


def newest(run: Path) -> Path:
    found = newest_intact_checkpoint(run / "checkpoints")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def stage(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of an earlier run's agent: an adapter, and the model with the merged adapter."""
    root = tmp_path_factory.mktemp("stage")
    return newest(train(root, *lora(model), *SHORT, "num_iterations=2", "checkpoint.weights=full")) / "low"


def divergence(root: Path, *overrides: str) -> float:
    """KL of an untrained policy to its reference, in the first iteration."""
    return abs(rows(train(root, *SHORT, *overrides))[-1]["low/kl/reference"])


@pytest.mark.slow
def test_merged_stage_is_reference_of_next_stage(model: Path, stage: Path, tmp_path: Path) -> None:
    adapter = stage / "actor" / "adapter"
    begins = (*lora(model), f"actor.adapter={adapter}")
    apart = divergence(tmp_path, *begins)  # from the base
    assert apart > 1e-4
    for reference in ("initial", adapter, stage):  # the last one is a whole model
        assert divergence(tmp_path, *begins, f"actor.reference={reference}") < 1e-6, reference
    whole = divergence(tmp_path, *full(model), f"actor.reference={stage / 'actor'}")
    assert whole > 1e-4
    assert divergence(tmp_path, *full(model), f"actor.reference={adapter}") == pytest.approx(whole, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "full"])
def test_updated_reference_equals_actor_and_resumes(
    kind: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STOP_AT_CALL", raising=False)
    keys = [*(lora if kind == "lora" else full)(model), *SHORT, *stopping_reward(tmp_path), "num_iterations=4"]
    keys += ["checkpoint.every=1"]
    still = [abs(row["low/kl/reference"]) for row in rows(train(tmp_path, *keys))[1:]]
    every = [*keys, "actor.reference_update_every=2"]
    run = train(tmp_path, *every)
    found = [abs(row["low/kl/reference"]) for row in rows(run)[1:]]
    assert found[:2] == still[:2]
    assert found[1] > 1e-4
    assert found[2] < 1e-6, "after two iterations the reference is the actor"
    assert found[3] > 1e-4, "which then goes on alone"
    for step, there in ((2, True), (3, True), (4, True)):
        folder = run / "checkpoints" / f"step_{step:08d}"
        if folder.is_dir():
            assert (folder / "low" / "reference" / "actor").is_dir() is there
    config, resumed = new_run(tmp_path, *every)
    with monkeypatch.context() as stopping:
        stopping.setenv("STOP_AT_CALL", "5")  # the third iteration's, after two of the evaluation
        with pytest.raises(Preempted):
            run_training(config, resumed, resumed=False)
    assert rows(resumed)[-1]["iteration"] == 2
    run_training(config, resumed, resumed=True)
    assert rows(resumed) == rows(run)
    name = "adapter_model.safetensors" if kind == "lora" else "model.safetensors"
    one, two = (load_file(newest(place) / "low" / "actor" / name) for place in (resumed, run))
    assert all(one[key].equal(two[key]) for key in two)


@pytest.mark.slow
def test_changed_reference_is_rejected_on_resume(model: Path, stage: Path, tmp_path: Path) -> None:
    reference = model_folder(tmp_path / "reference", LETTERS, seed=3)
    keys = [*lora(model), *SHORT, f"actor.reference={reference}", "num_iterations=2", "max_iterations_this_run=1"]
    config, folder = new_run(tmp_path, *keys)
    run_training(config, folder, resumed=False)
    with (reference / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ResumeError, match=r"reference: model\.safetensors differs from what this run started with"):
        run_training(small_config(tmp_path, *keys[:-1])[0], folder, resumed=True)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("actor.reference=base",), r"actor.reference=base is the base of an adapter, and actor=tiny has none"),
        (("actor.reference=nowhere",), "is neither initial nor base nor a folder with a model"),
        (("actor.reference_update_every=3", "algorithm.kl.reward.coef=0"), "no KL term uses"),
        (("actor.reference_update_every=3", "deepspeed=zero3"), "deepspeed.stage=3 shards both"),
        (("actor.reference_update_every=0",), "actor.reference_update_every=0"),
        (("actor.reference_update_every=3", "reward.measure_credit_every=1"), "policies for measuring credit"),
        (
            ("task.agents.low.frozen=true", "task.agents.low.actor.reference_update_every=2"),
            "task.agents.low.actor.reference_update_every=2 has no effect",
        ),
    ],
)
def test_invalid_references_are_rejected(tmp_path: Path, overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(IppoError, match=words):
        small_config(tmp_path, "algorithm.kl.reward.coef=0.1", *overrides)


@pytest.mark.slow
def test_references_of_another_kind_are_rejected(model: Path, stage: Path, tmp_path: Path) -> None:
    adapter, updated = stage / "actor" / "adapter", "actor.reference_update_every=2"
    kl = "algorithm.kl.reward.coef=0.1"
    with pytest.raises(ConfigError, match=r"both must be adapters, and reference=.* is a whole model"):
        small_config(tmp_path, *lora(model), kl, updated, f"actor.reference={model}")
    with pytest.raises(ConfigError, match=r"both must be whole models, and reference=.* is an adapter"):
        small_config(tmp_path, *full(model), kl, updated, f"actor.reference={adapter}")
    with pytest.raises(IppoError, match="its rank is 4 and not 2"):
        small_config(tmp_path, *lora(model), "actor.rank=2", kl, updated, f"actor.reference={adapter}")
    with pytest.raises(ConfigError, match="is an adapter with an unsharded base"):
        small_config(tmp_path, *full(model), kl, "deepspeed=zero3", f"actor.reference={adapter}")
    other = model_folder(tmp_path / "other", "zyx abcdefghijk=", seed=1)
    with pytest.raises(ConfigError, match=r"actor\.reference=.* has an embedding of 19 tokens, .* has 31"):
        train(tmp_path, *full(model), *SHORT, f"actor.reference={other}")


@pytest.mark.slow
def test_plan_counts_memory_of_references(model: Path, stage: Path, tmp_path: Path) -> None:
    def references(*overrides: str) -> dict[str, int]:
        config: Config = small_config(tmp_path, "algorithm.kl.reward.coef=0.1", *overrides)[0]
        from ippo_cli.tasks.task import load_task

        material = read_model_specs(config, load_task(config.task, config.seed))
        frozen = estimate_memory(config, material.shapes, 1, 1, "cpu", material.reward_models).frozen
        return {part.name: part.shape.parameters for part in frozen if part.name.endswith("reference")}

    adapter = sum(
        tensor.numel() for tensor in load_file(stage / "actor" / "adapter" / "adapter_model.safetensors").values()
    )
    whole = sum(tensor.numel() for tensor in load_file(model / "model.safetensors").values())
    assert references(*lora(model)) == {}
    assert references(*lora(model), f"actor.reference={stage / 'actor' / 'adapter'}") == {"low reference": adapter}
    assert references(*lora(model), f"actor.reference={stage}") == {"low reference": whole}
    every = "actor.reference_update_every=1"
    assert references(*lora(model), every) == {"low reference": adapter, "high reference": adapter}
    assert references(*full(model), every) == {"low reference": whole, "high reference": whole}
