"""A small model learns to cross a frozen lake from its rewards only."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))
from small import train

LAKE = (
    "task=gymnasium",
    "task.env_id=FrozenLake-v1",
    "+task.environment_args={is_slippery: false, desc: [SFF, FHF, FFG]}",
    "algorithm=ppo",
    "algorithm.gamma=0.99",
    "algorithm.entropy_coef=0.01",
    "algorithm.mini_batch_size=32",
    "actor.warm_start_steps=200",
    "actor.warm_start_batch_size=64",
    "actor.learning_rate=2e-3",
    "actor.warmup_iterations=2",
    "critic.learning_rate=3e-3",
    "task.train_size=65536",
    "task.eval_size=64",
    "rollout.buffer_size=128",
    "rollout.decode_batch_size=128",
    "rollout.max_new_tokens=2",
    "num_iterations=10",
    "evaluation.every=0",
    "checkpoint.every=0",
)


@pytest.mark.slow
def test_small_lake_is_learned(tmp_path: Path) -> None:
    folder = train(tmp_path, *LAKE)
    evaluation = json.loads((folder / "run.json").read_text())["evaluation"]
    first, last = evaluation["first"], evaluation["last"]
    assert first["sampled/invalid"] < 0.5  # turns per episode: the warm start teaches the format
    # Random play crosses in 14 % of the episodes.
    assert first["score"] < 0.35
    assert last["score"] > 0.4
