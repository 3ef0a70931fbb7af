"""One iteration of adapter training on tiny models of many families."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from architectures import FAMILIES, tiny_config
from safetensors.torch import load_file
from small import rows, train
from transformers import AutoModelForCausalLM

from ippo_cli.models.tiny import character_tokenizer

DIFFERENT_SCORES = """
def reward(examples, responses):
    return {"team": [float(row) for row in range(len(examples))]}
"""


STANDARD = ("llama", "gemma3", "gpt2", "qwen2_moe", "mamba")  # in the standard tier


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.core) if name in STANDARD else name for name in FAMILIES]
)
def test_adapter_trains_for_one_iteration(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reward.py").write_text(DIFFERENT_SCORES)
    tokenizer = character_tokenizer(list("abcdefghijklmnopqrstuvwxyz= "))
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(tiny_config(family, **ids)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    folder = train(
        tmp_path,
        "actor=lora",
        f"actor.model={tmp_path / 'model'}",
        "actor.dtype=fp32",
        "actor.rank=4",
        "actor.learning_rate=1e-3",
        "actor.warmup_iterations=0",
        "reward=function",
        f"reward.function={tmp_path / 'reward.py'}:reward",
        "algorithm=grpo",
        "algorithm.mini_batch_size=8",
        "rollout.buffer_size=8",
        "rollout.num_generations=2",
        "rollout.max_new_tokens=4",
        "num_iterations=1",
        "evaluation.every=0",
        "task.eval_size=1",
    )
    assert rows(folder)[-1]["iteration"] == 1
    weights = load_file(folder / "checkpoints" / "step_00000001" / "low" / "actor" / "adapter_model.safetensors")
    assert any(tensor.abs().max() > 0 for name, tensor in weights.items() if "lora_B" in name)
