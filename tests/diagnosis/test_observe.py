"""What is read from a run's folder besides metrics: sizes of the data and saved adapters."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ippo_cli.compose.load import build_config, compose_node, resolve_config
from ippo_cli.config.schema import Config
from ippo_cli.diagnosis.observe import count_examples, find_unchanged_adapters, measure_sampled_kl
from ippo_cli.runs.records import RunRecord


def config(*overrides: str) -> Config:
    return build_config(resolve_config(compose_node(list(overrides))))


def jsonl(folder: Path, rows: int, *overrides: str) -> Config:
    (folder / "train.jsonl").write_text('{"prompt": "x"}\n' * rows)
    (folder / "test.jsonl").write_text('{"prompt": "x"}\n' * 3)
    return config("task=jsonl", f"task.train={folder}/train.jsonl", *overrides)


def test_generated_tasks_have_their_sizes() -> None:
    task = config("task=sorting", "task.train_size=100", "task.eval_size=7")
    assert (count_examples(task, "train"), count_examples(task, "eval")) == (100, 7)


@pytest.mark.parametrize(
    ("overrides", "train", "held_out"),
    [
        (("task.eval=FOLDER/test.jsonl",), 20, 3),
        (("task.eval=FOLDER/test.jsonl", "task.train_size=5"), 5, 3),
        (("task.eval_share=0.1",), 18, 2),
        (("task.eval=FOLDER/missing.jsonl",), 20, None),
    ],
)
def test_rows_of_local_files(overrides: tuple[str, ...], train: int, held_out: int | None, tmp_path: Path) -> None:
    task = jsonl(tmp_path, 20, *(text.replace("FOLDER", str(tmp_path)) for text in overrides))
    assert (count_examples(task, "train"), count_examples(task, "eval")) == (train, held_out)


def test_rows_of_a_hub_dataset_are_unknown() -> None:
    assert count_examples(config("task=gsm8k", "actor=full", "actor.model=x"), "train") is None


def test_adapter_with_zero_matrices(tmp_path: Path) -> None:
    lora = config("task=sorting", "actor=tiny_lora")
    checkpoint = tmp_path / "checkpoints" / "step_00000003"
    for agent, value in (("low", 0.0), ("high", 0.1)):
        folder = checkpoint / agent / "actor"
        folder.mkdir(parents=True)
        tensors = {"layer.lora_A.weight": torch.ones(2, 3), "layer.lora_B.weight": torch.full((3, 2), value)}
        save_file(tensors, folder / "adapter_model.safetensors")
    assert find_unchanged_adapters(tmp_path, lora) == ()
    (checkpoint / "manifest.json").write_text("{}")
    assert find_unchanged_adapters(tmp_path, lora) == ("low",)
    assert find_unchanged_adapters(tmp_path, config("task=sorting")) == ()
    (checkpoint / "low" / "actor" / "adapter_model.safetensors").write_bytes(b"damaged")
    assert find_unchanged_adapters(tmp_path, lora) == ()


def test_kl_of_sampled_tokens(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    turns = [
        {"agent": "low", "tokens": {"ratio": [2.0, 0.5, None, 0.0] * 8}},
        {"agent": "high", "tokens": {"ratio": [1.0] * 15}},  # too few
        {"agent": "frozen", "tokens": {"text": ["a"]}},
        {"agent": "old"},
    ]
    for iteration in (1, 20):
        (tmp_path / "samples" / f"train_{iteration:08d}.jsonl").write_text(json.dumps({"turns": turns}) + "\n")
    expected = (1 - math.log(2) - 0.5 - math.log(0.5) - 1 + 1e-38 - math.log(1e-38)) / 3
    assert measure_sampled_kl(RunRecord(tmp_path)) == {"low": {1: pytest.approx(expected), 20: pytest.approx(expected)}}
