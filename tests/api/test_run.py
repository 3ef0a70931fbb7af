"""Runs from Python: training, reading, models, evaluation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small import small, train

import ippo_cli
from ippo_cli.api.overrides import to_overrides
from ippo_cli.config.errors import ConfigError, ResumeError


def test_importing_the_package_imports_nothing_else():
    code = (
        "import sys, ippo_cli; print(sorted(n for n in sys.modules if n.startswith(('ippo_cli.', 'torch', 'hydra'))))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'trains'"):
        _ = ippo_cli.trains  # type: ignore[attr-defined]


@pytest.mark.parametrize("item", ["-m", 3, ["seed=1", "--cfg"]])
def test_flags_and_other_values_are_no_overrides(item: object):
    with pytest.raises(ConfigError, match="is not an override"):
        to_overrides([item], {})  # type: ignore[list-item]


def test_wrong_overrides_raise_all_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"(?s)2 mistakes.*gama.*seeed"):
        ippo_cli.train({"algorithm": {"gama": 0.9}}, seeed=1)
    with pytest.raises(ConfigError, match="has several values"):
        ippo_cli.train("seed=1,2")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_run_is_refused(tmp_path: Path):
    with pytest.raises(ResumeError, match=r"is not a run's folder"):
        ippo_cli.Run(tmp_path)


def test_read_a_run(tmp_path: Path):
    run = ippo_cli.Run(train(tmp_path, "task=sorting_solo", "num_iterations=1", "tracker.samples_every=1"))
    assert (run.status, [row["iteration"] for row in run.metrics]) == ("done", [0, 1])
    assert list(run.metrics_frame().index) == [0, 1]
    assert {episode["mode"] for episode in run.episodes("eval", iteration=1)} == {"sampled", "greedy"}
    assert {episode["mode"] for episode in run.episodes("train")} == {"train"}
    assert len(run.episodes()) == len(run.episodes("train")) + len(run.episodes("eval"))
    with pytest.raises(ConfigError, match="mode=test is unknown"):
        run.episodes("test")
    agent = run.agents["solo"]
    saved = load_file(run.folder / "checkpoints/step_00000001/solo/actor/model.safetensors")
    weights = agent.load_actor().state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in saved.items())
    initial = agent.load_actor("initial").state_dict()
    assert any(not torch.equal(initial[name], tensor) for name, tensor in saved.items())
    assert agent.tokenizer("initial")("abc=").input_ids == agent.tokenizer()("abc=").input_ids
    assert type(agent.load_critic()).__name__ == "ValueModel"
    with pytest.raises(ConfigError, match="finds no critic in initial"):
        agent.load_critic("initial")


@pytest.mark.slow
def test_adapters_are_merged_and_value_heads_get_their_actor(tmp_path: Path):
    run = ippo_cli.Run(train(tmp_path, "actor=tiny_lora", "critic=adapter", "team=shared_base", "num_iterations=1"))
    model = run.agents["high"].load_actor()
    assert model.dtype == torch.float32
    assert not any("lora" in name for name, _ in model.named_parameters())
    with pytest.raises(ConfigError, match="has an adapter as its critic"):
        run.agents["high"].load_critic()
    run = ippo_cli.Run(train(tmp_path, "algorithm=ppo", "critic=value_head", "num_iterations=1"))
    critic = run.agents["low"].load_critic()
    assert type(critic).__name__ == "ValueModel"
    head = load_file(run.folder / "checkpoints/step_00000001/low/critic/model.safetensors")
    assert all(torch.equal(critic.value_head.state_dict()[name], tensor) for name, tensor in head.items())


@pytest.mark.slow
def test_train_with_a_function_of_advantages_in_two_processes(tmp_path: Path):
    """Rows of one prompt are on both ranks; the function sees them together, as in one process."""
    code = tmp_path / "mine.py"
    code.write_text(
        "def estimate(inputs, config):\n"
        "    assert len(inputs.rewards) == 16 or inputs.rewards.shape[1] == 3\n"  # 3: made-up rows before the run
        "    score = (inputs.rewards * inputs.mask).sum(dim=1)\n"
        "    return (score - score.mean())[:, None] * inputs.mask\n"
    )
    keys = [*small([]), "algorithm=grpo", "critic=none", "rollout.num_generations=4", "evaluation.every=0"]
    keys.append(f"algorithm.advantage={code}:estimate")
    rows = []
    for processes in (1, 2):
        run = ippo_cli.train(keys, {"launch.processes": processes}, num_iterations=1, output_dir=tmp_path)
        assert (run.status, run.config["algorithm"]["advantage"]) == ("done", f"{code}:estimate")
        rows.append(run.metrics[-1])
    for key, value in rows[0].items():
        if key.startswith(("low/targets", "low/policy/loss")):
            assert rows[1][key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
