"""Training with a curriculum: resume, ranks, and the prompts that are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import assert_two_ranks_agree, new_run, open_trainer, rows, train

from ippo_cli.config.errors import Preempted
from ippo_cli.training.process import run_training

REWARD = '''
import os, signal
calls = 0

def reward(examples, responses):
    """A third of the prompts is always right, a third always wrong. Asks the run to stop at a chosen call."""
    global calls
    calls += 1
    if str(calls) == os.environ.get("STOP_AT_CALL"):
        os.kill(os.getpid(), signal.SIGTERM)
    kinds = [sum(map(ord, row["low"])) % 3 for row in examples]
    return {"team": [[0.0, 1.0, float(len(low) % 2)][kind] for kind, low in zip(kinds, responses["low"])]}
'''
BAND = ("task.curriculum.band_low=0.2", "task.curriculum.band_high=0.8")


def overrides(root: Path, *more: str) -> list[str]:
    root.mkdir(parents=True, exist_ok=True)
    (root / "reward.py").write_text(REWARD)
    return [
        "algorithm=grpo",
        "rollout.num_generations=4",
        "rollout.buffer_size=32",
        "task.train_size=16",
        "num_iterations=5",
        "evaluation.every=0",
        "checkpoint.every=1",
        "reward=function",
        f"reward.function={root / 'reward.py'}:reward",
        *BAND,
        *more,
    ]


def test_prompts_that_are_always_right_or_wrong_become_rare(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *overrides(tmp_path, "task.curriculum.outside_weight=0.0")) as trainer:
        kinds = []
        for _ in range(4):
            experience, _ = trainer.step()
            kinds.append([sum(map(ord, example["low"])) % 3 for example in experience.batch.examples[::4]])
        assert {0, 1, 2} == set(kinds[0]) | set(kinds[1]), "the first pass has all prompts"
        assert set(kinds[3]) == {2}
        row = trainer.state.progress.row
        assert row is not None
        assert row["curriculum/seen_fraction"] == 1.0
        assert row["curriculum/skipped_fraction"] > 0.3
        assert row["curriculum/too_easy_fraction"] > 0
        assert row["curriculum/too_hard_fraction"] > 0
        assert trainer.state.progress.extra_prompts > 0


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["rollout.refill_rounds=2"]], ids=["alone", "refill"])
def test_stopped_run_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]) -> None:
    keys = overrides(tmp_path, *more)
    whole = train(tmp_path / "whole", *keys)
    assert rows(whole)[-1]["curriculum/skipped_fraction"] > 0
    config, folder = new_run(tmp_path, *keys)
    with monkeypatch.context() as stopping:
        stopping.setenv("STOP_AT_CALL", "6")
        with pytest.raises(Preempted):
            run_training(config, folder, resumed=False)
    assert 1 <= rows(folder)[-1]["iteration"] < 5
    run_training(config, folder, resumed=True)
    assert rows(folder) == rows(whole)


@pytest.mark.slow
def test_two_ranks_equal_one(tmp_path: Path) -> None:
    keys = overrides(tmp_path, "rollout.refill_rounds=1", "rollout.buffer_size=20")
    assert assert_two_ranks_agree(tmp_path, *keys)[-1]["curriculum/skipped_fraction"] > 0
