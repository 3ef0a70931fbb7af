"""Real input: a JSON-lines file, a model from a folder, a chat template, and a user's reward function."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from small import rows

from ippo_cli.compose.load import build_config, compose_node, resolve_config, to_yaml
from ippo_cli.config.checks import check_config
from ippo_cli.runs.folder import reserve_folder, write_start_files
from ippo_cli.training.process import run_training

ROOT = Path(__file__).resolve().parents[2]
GSM8K = ROOT.parent / "shared" / "data" / "gsm8k"

FUNCTION = """
def lengths(examples, responses):
    words = [float(len(text.split())) for text in responses["solver"]]
    return {"team": [float(bool(row["answer"])) / (1 + count) for row, count in zip(examples, words)],
            "parts": {"words": words}}
"""


@pytest.mark.slow
@pytest.mark.skipif(not (GSM8K / "train.jsonl").is_file(), reason="the GSM8K files are not beside the checkout")
@pytest.mark.parametrize("chat", ["false", "auto"])
def test_gsm8k_trains_with_its_reward_or_a_function(tmp_path, chat):
    runpy.run_path(str(ROOT / "scripts" / "examples" / "small_model.py"))["make"](
        GSM8K / "test.jsonl", tmp_path / "model", vocabulary=512, hidden=32, layers=1, seed=0
    )
    (tmp_path / "mine.py").write_text(FUNCTION)
    function = ["reward=function", f"reward.function={tmp_path / 'mine.py'}:lengths"] if chat == "false" else []
    overrides = [
        "task=gsm8k",
        f"task.train={GSM8K / 'train.jsonl'}",
        f"task.eval={GSM8K / 'test.jsonl'}",
        "task.train_size=64",
        "task.eval_size=19",
        f"task.chat_template={chat}",
        "actor=full",
        f"actor.model={tmp_path / 'model'}",
        "actor.dtype=bf16",
        "actor.learning_rate=1e-4",
        *function,
        "algorithm=ppo",
        "rollout.buffer_size=8",
        "rollout.num_generations=2",
        "algorithm.mini_batch_size=4",
        "rollout.max_new_tokens=12",
        "num_iterations=null",
        "num_epochs=0.1",
        "evaluation.every=0",
        "tracker.tensorboard=false",
        "tracker.console=plain",
        f"output_dir={tmp_path}",
        "algorithm.kl.loss.coef=0.01",
        "actor.gradient_checkpointing=true",
    ]
    plain = resolve_config(compose_node(overrides))
    config = build_config(plain)
    check_config(config, 1)
    folder = reserve_folder(tmp_path / "run")
    write_start_files(folder, to_yaml(plain), overrides, ["ippo-train"], resumed=False)
    run_training(config, folder, resumed=False)
    found = rows(folder)
    assert [row["iteration"] for row in found] == [0, 1, 2], "0.1 epochs of 64 rows are two iterations of 4 prompts"
    assert found[-1]["solver/score/failed_fraction"] == 0
    for part in ("words",) if function else ("strict", "flexible"):
        assert 0 <= found[-1][f"eval/sampled/{part}"] <= 12
    sample = json.loads((folder / "samples" / "eval_00000000.jsonl").read_text().splitlines()[0])
    prompt = sample["agents"]["solver"]["prompt"]
    assert prompt.startswith("Janet"), "what it was told, whatever a chat template writes around it"
