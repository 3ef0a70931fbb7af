"""`critic.freeze` in runs: frozen parameters keep their initial values, runs resume exactly, and memory is planned."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from small import final_weights, new_run, rows, train

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.planning.memory import estimate_memory
from ippo_cli.planning.model_specs import read_model_specs
from ippo_cli.tasks.task import load_task
from ippo_cli.training.process import run_training

FROZEN = ("algorithm=sao", "algorithm.critic_warmup=1", "algorithm.mini_batch_size=8", "evaluation.every=0")


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["zero0", "zero2", "zero3"])
def test_frozen_parameters_and_exact_resume(tmp_path, stage: str) -> None:
    keys = (*FROZEN, f"deepspeed={stage}")
    whole = train(tmp_path, *keys, "num_iterations=3")
    folder = train(tmp_path, *keys, "num_iterations=2")
    config, _ = new_run(tmp_path, *keys, "num_iterations=3")
    run_training(config, folder, resumed=True)
    assert rows(folder)[-1] == rows(whole)[-1]
    expected, found = final_weights(whole), final_weights(folder)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    initial = load_file(whole / "initial" / "low" / "model.safetensors")
    critic = load_file(next(iter(sorted(whole.glob("checkpoints/step_*3/low/critic/model.safetensors")))))
    kept = {
        name
        for name, value in critic.items()
        if name.startswith("backbone.") and torch.equal(value, initial[name.replace("backbone.", "model.", 1)])
    }
    assert kept == {name for name in critic if "attn" in name}


def test_plan_has_no_optimizer_states_of_frozen_parameters() -> None:
    def critic(*overrides: str):
        config = load_config(["task=sorting_solo", "algorithm=ppo", *overrides])
        specs = read_model_specs(config, load_task(config.task, config.seed))
        (found,) = [m for m in estimate_memory(config, specs.shapes, 1, 8, "cuda").trained if not m.is_actor]
        return found

    for stage in (0, 1, 2, 3):
        whole = critic(f"deepspeed=zero{stage}", "actor.dtype=bf16")
        frozen = critic(f"deepspeed=zero{stage}", "actor.dtype=bf16", "critic.freeze=[*attn*]")
        share = frozen.shape.trained_parameters / whole.shape.trained_parameters
        assert 0.5 < share < 0.9
        assert frozen.memory.weights == pytest.approx(whole.memory.weights)
        assert frozen.memory.optimizer == pytest.approx(share * whole.memory.optimizer)
        assert frozen.memory.gradients == pytest.approx(share * whole.memory.gradients)


def test_pattern_without_match_rejected_before_training() -> None:
    config = load_config(["task=sorting_solo", "algorithm=ppo", "critic.freeze=[*self_attention*]"])
    with pytest.raises(ConfigError, match=r"^critic.freeze=\[\*self_attention\*\] matches no parameter of the critic"):
        read_model_specs(config, load_task(config.task, config.seed))
