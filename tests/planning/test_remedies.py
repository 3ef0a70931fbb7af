"""Remedies for memory: whatever a plan recommends fits, by the same plan."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from folders import SEVEN_B, weightless_folder

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.config import vllm
from ippo_cli.config.checks import check_config
from ippo_cli.config.hardware import world_size
from ippo_cli.config.schema import Config
from ippo_cli.planning.prepare import Prepared, Purpose, load_task_and_reward, prepare
from ippo_cli.planning.remedies import describe_remedy, find_memory_problem
from ippo_cli.planning.resources import planned_machine
from ippo_cli.planning.run_memory import Machine
from ippo_cli.rewards.contract import close_reward

QWEN_32B = SEVEN_B | {
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
}
FEW_LAYERS = SEVEN_B | {"num_hidden_layers": 4}
OVERRIDE = re.compile(r"(?:\+\+)?[\w.]+=[\w.]+")


def compose(*overrides: str) -> Config:
    config = load_config(normalize_arguments(list(overrides)))
    check_config(config, world_size(config, None))
    return config


def plan(config: Config) -> tuple[Prepared, Machine]:
    ranks, machine = world_size(config, None), planned_machine(config)
    assert machine is not None
    task, reward = load_task_and_reward(config, ranks, Purpose.plan, lambda line: None)
    close_reward(reward)
    return prepare(config, ranks, machine.device, task, reward, report=lambda line: None), machine


def read_remedies(text: str) -> list[list[str]]:
    """The overrides of each remedy of a message."""
    _, separator, remedies = text.rpartition("; use ")
    assert separator
    parts = re.findall(r"\(([^)]*)\)", remedies) if "(" in remedies else [remedies]
    return [OVERRIDE.findall(part) for part in parts if "=" in part]


def solo_overrides(model: Path, *more: str) -> list[str]:
    keys = ["mode=plan", "plan=h100", "task=arithmetic", "actor=full", f"actor.model={model}", "actor.dtype=bf16"]
    return [*keys, "rollout.buffer_size=64", *more]


def ppo(*more: str) -> list[str]:
    return ["algorithm=ppo", "critic=separate", "critic.dtype=bf16", *more]


def test_32b_on_32_gpus(tmp_path) -> None:
    """Smaller passes free one phase only, and rows of this length do not fit into a pass without recomputation."""
    keys = ppo("plan.devices=32", "deepspeed=zero3", "rollout.max_new_tokens=4096")
    keys = solo_overrides(weightless_folder(tmp_path, QWEN_32B), *keys)
    problem = find_memory_problem(*plan(compose(*keys)))
    assert problem is not None
    assert not problem.is_certain
    assert "update may need" in problem.text
    (remedy,) = read_remedies(problem.text)
    assert "rollout.zero3_gather=layer" in remedy
    assert find_memory_problem(*plan(compose(*keys, *remedy))) is None


def test_nothing_fits(tmp_path) -> None:
    keys = ppo("plan.memory_gib=2", "plan.machine_memory_gib=2", "rollout.max_new_tokens=1024")
    problem = find_memory_problem(*plan(compose(*solo_overrides(weightless_folder(tmp_path, QWEN_32B), *keys))))
    assert problem is not None
    assert problem.is_certain
    assert re.search(
        r"no ZeRO stage.* fits: at least \d+\.\d GiB are missing (on a GPU|in the memory of a machine), with ",
        problem.text,
    )


def test_resumed_runs_keep_their_stage(tmp_path) -> None:
    keys = ppo("deepspeed=zero1", "plan.memory_gib=60", "rollout.max_new_tokens=1024")
    prepared, machine = plan(compose(*solo_overrides(weightless_folder(tmp_path, SEVEN_B), *keys)))
    assert "deepspeed.stage" in describe_remedy(prepared, machine)
    assert "deepspeed.stage" not in describe_remedy(prepared, machine, is_resumed=True)


def random_overrides(draw: random.Random, model: Path) -> list[str]:
    """A plan on devices that are mostly too small."""
    devices = draw.choice([1, 4, 8, 16])
    keys = [
        f"plan.devices={devices}",
        f"plan.memory_gib={draw.choice([1, 2, 4, 8, 16, 24, 40])}",
        f"plan.machine_memory_gib={draw.choice([16, 64, 256, 2000])}",
        f"deepspeed.stage={draw.randrange(4)}",
        f"deepspeed.micro_batch_tokens={draw.choice([1000, 4096, 65536])}",
        f"deepspeed.forward_batch_tokens={draw.choice([4096, 262144])}",
        f"rollout.max_new_tokens={draw.choice([16, 500, 4096, 16384])}",
        f"rollout.decode_batch_size={draw.choice([1, 24, 512])}",
        f"rollout.buffer_size={draw.choice([64, 512])}",
        f"actor.gradient_checkpointing={draw.choice(['true', 'false'])}",
    ]
    keys += draw.choice(
        [
            ppo(),
            ppo("critic.ensemble=2", "algorithm.value_clip_range=null", "critic.gradient_checkpointing=true"),
            ["algorithm=ppo", "critic=value_head"],
            ["algorithm=grpo", "critic=none", "rollout.num_generations=4", "algorithm.kl.loss.coef=0.1"],
        ]
    )
    if draw.random() < 0.3:
        keys += ["task=arithmetic_pair", "task.agents.add.actor.gradient_checkpointing=true"]
    if devices >= 4 and draw.random() < 0.3:
        last = min(devices, 8) - 1
        keys += ["rollout=vllm", "rollout.vllm.mode=server", f"launch.placement={{rollout: {last - 1}-{last}}}"]
    return solo_overrides(model, *keys)


@pytest.mark.parametrize("seed", [1, 2, 3, 30, 33, 37, 49, 62, 64, 80])
def test_recommended_settings_fit(tmp_path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(vllm, "find_spec", lambda name: object())
    draw = random.Random(seed)
    keys = random_overrides(draw, weightless_folder(tmp_path, draw.choice([FEW_LAYERS, SEVEN_B])))
    problem = find_memory_problem(*plan(compose(*keys)))
    assert problem is not None
    for remedy in read_remedies(problem.text):
        assert remedy, problem.text
        left = find_memory_problem(*plan(compose(*keys, *remedy)))
        assert left is None, f"{problem.text}\n{left}"
