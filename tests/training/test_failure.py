"""A failing run saves its last resume point, reports it, and resumes exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small import new_run, rows, train

from ippo_cli.config.errors import IppoError, NonFiniteError, RewardError
from ippo_cli.runs.folder import list_checkpoints
from ippo_cli.training.process import run_training

REWARD = '''
import os, random
calls = 0

def reward(examples, responses):
    """Depends on the global random stream; from a chosen call on it fails."""
    global calls
    calls += 1
    noise = random.random()
    if calls >= int(os.environ.get("FAIL_AT_CALL", 99)):
        raise KeyError("my_field")
    return {"team": [len(set(low) & set(row["low"])) / 3 + 0.1 * noise for low, row in zip(responses["low"], examples)]}
'''
# Reward calls: 1 and 2 evaluate, 3 and 4 belong to the first iteration (ReMax: sampled, greedy), 5 and 6 to the
# second, 7 and 8 evaluate, 9 and 10 belong to the third, 11 and 12 evaluate.
KEYS = (
    "algorithm=remax",
    "num_iterations=3",
    "reward.processor=[running_zscore]",
    "checkpoint.every=100",
    "tracker.samples_every=1",
)


def overrides(root: Path) -> list[str]:
    root.mkdir(exist_ok=True)
    (root / "reward.py").write_text(REWARD)
    return ["reward=function", f"reward.function={root / 'reward.py'}:reward", *KEYS]


def failed_run(root: Path, error: type[BaseException], *more: str) -> tuple[Any, Path, BaseException]:
    config, folder = new_run(root, *overrides(root), *more)
    with pytest.raises(error) as caught:
        run_training(config, folder, resumed=False)
    state = json.loads((folder / "run.json").read_text())
    assert state["state"] == "failed"
    assert str(caught.value) in state["error"]
    assert "Traceback" in (folder / "errors" / "rank_0.txt").read_text()
    return config, folder, caught.value


@pytest.mark.slow
def test_failed_reward_saves_and_resumes_exactly(tmp_path, monkeypatch):
    monkeypatch.delenv("FAIL_AT_CALL", raising=False)
    whole = train(tmp_path / "whole", *overrides(tmp_path / "whole"))
    expected = rows(whole)
    # In the second iteration; after its scores updated the running moments; in the evaluation after it.
    for call, iteration in ((5, 1), (6, 1), (8, 2)):
        root = tmp_path / str(call)
        monkeypatch.setenv("FAIL_AT_CALL", str(call))
        config, folder, error = failed_run(root, RewardError)
        assert str(error).endswith("reward.py:11: KeyError: 'my_field'")
        [note] = error.__notes__
        assert note == f"saved after iteration {iteration}; resume with: ippo-train resume={folder}"
        assert [path.name for path in list_checkpoints(folder / "checkpoints")] == [f"step_{iteration:08d}"]
        monkeypatch.delenv("FAIL_AT_CALL")
        run_training(config, folder, resumed=True)
        assert rows(folder) == expected, f"failed at call {call}"
        assert json.loads((folder / "run.json").read_text())["state"] == "done"
        assert not (folder / "errors" / "rank_0.txt").exists()


@pytest.mark.slow
def test_no_save_after_update_has_started(tmp_path, monkeypatch):
    step, steps = torch.optim.AdamW.step, []

    def failing(self, *args):
        steps.append(1)
        if len(steps) > 6:
            raise RuntimeError("the device is gone")
        return step(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", failing)
    _, folder, error = failed_run(tmp_path, RuntimeError, "evaluation.every=0", "checkpoint.every=1")
    newest = list_checkpoints(folder / "checkpoints")
    done = rows(folder)[-1]["iteration"]
    assert [int(path.name[5:]) for path in newest[-1:]] == ([done] if done else [])
    assert "saved after" not in error.__notes__[0]


@pytest.mark.slow
def test_non_finite_weights_are_not_saved(tmp_path, monkeypatch):
    def spoiling(self, *args):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.fill_(float("nan"))

    monkeypatch.setattr(torch.optim.AdamW, "step", spoiling)
    _, folder, error = failed_run(tmp_path, NonFiniteError, "evaluation.every=0", "actor.warm_start_steps=0")
    assert isinstance(error, IppoError)
    assert list_checkpoints(folder / "checkpoints") == []
    assert error.__notes__ == ["there is no checkpoint to resume from; start a new run"]
