"""Runs with models on different ranks: equal to a run on one rank, and resumable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rank_scripts import finish, read_output, start_ranks
from safetensors.torch import load_file
from small import SMALL, assert_metrics_close, rows, train
from test_reward_model_ranks import reward_model

pytestmark = pytest.mark.slow

RUN = (
    "num_iterations=2",
    "evaluation.every=1",
    "checkpoint.every=1",
    "critic=separate",
    "algorithm=ppo",
    "algorithm.mini_batch_size=8",
    "rollout.recompute_logprobs=true",
    "actor.warmup_iterations=0",
    "actor.adam_epsilon=1e-3",  # otherwise the first step of a near-zero gradient is its rounding
    "critic.adam_epsilon=1e-3",
)
KL = ("algorithm.kl.reward.coef=0.1",)


def place(**ranks: str) -> str:
    """The override of `launch.placement`; `low__actor` is `low.actor`."""
    entries = [f"{component.replace('__', '.')}: {value!r}" for component, value in ranks.items()]
    return f"launch.placement={{{', '.join(entries)}}}"


def train_placed(root: Path, *overrides: str, world_size: int = 2) -> Path:
    """The folder of such a run."""
    root.mkdir(parents=True, exist_ok=True)
    command = ["ippo_cli.cli.train", *SMALL, *overrides, f"output_dir={root}"]
    codes = finish(start_ranks(*command, folder=root, world_size=world_size), limit_s=500)
    assert codes == [0] * world_size, read_output(root)
    (metrics,) = root.glob("default/*/metrics.jsonl")
    return metrics.parent


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """All weights of the last checkpoint."""
    last = max((folder / "checkpoints").glob("step_*"))
    return {
        f"{file.relative_to(last)}/{name}": tensor
        for file in last.rglob("*.safetensors")
        for name, tensor in load_file(file).items()
    }


def assert_same_run(placed: Path, alone: Path) -> None:
    assert_metrics_close(rows(placed), rows(alone), rel=1e-4, abs=1e-6)
    expected, found = read_weights(alone), read_weights(placed)
    assert found.keys() == expected.keys()
    for name, weights in found.items():
        torch.testing.assert_close(weights, expected[name], rtol=0, atol=2e-6)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on one rank."""
    return train(tmp_path_factory.mktemp("alone"), *RUN, *KL)


@pytest.mark.core
def test_critic_and_reference_on_other_ranks(alone: Path, tmp_path: Path) -> None:
    placed = train_placed(tmp_path, *RUN, *KL, place(actor="0", critic="1-2", reference="2"), world_size=3)
    assert_same_run(placed, alone)
    ranks = json.loads((max((placed / "checkpoints").glob("step_*")) / "state.json").read_text())["ranks"]
    assert ranks == {name: {"policy": [0], "value": [1, 2]} for name in ("low", "high")}


def test_agents_on_other_ranks_and_resume(alone: Path, tmp_path: Path) -> None:
    keys = place(low__actor="0", low__critic="0", high__actor="1", high__critic="1")
    placed = train_placed(tmp_path, *RUN, *KL, keys, "deepspeed=zero3", "max_iterations_this_run=1")
    assert rows(placed)[-1]["iteration"] == 1
    resume = ["ippo_cli.cli.train", f"resume={placed}", "max_iterations_this_run=null"]
    assert finish(start_ranks(*resume, folder=tmp_path), limit_s=300) == [0, 0], read_output(tmp_path)
    assert_same_run(placed, alone)


def test_reward_model_on_one_rank(tmp_path: Path) -> None:
    keys = ["reward=model", f"reward.model={reward_model(tmp_path, 'classifier')}", "reward.max_tokens=34"]
    keys += ["num_iterations=1", "evaluation.every=1", "checkpoint.every=0", "reward.failure_budget=1"]
    keys += ["reward.overlong=fail"]
    one = train(tmp_path / "one", *keys)
    assert_metrics_close(rows(one), rows(train_placed(tmp_path / "two", *keys, place(reward="1"))))


REWARD = """
import gc, os

def reward(examples, responses):
    held = {type(value).__name__ for value in gc.get_objects()} & {"Policy", "ValueModel"}
    with open(os.path.join(os.environ["REPORTS"], os.environ["RANK"]), "w") as file:
        file.write(" ".join(sorted(held)))
    return {"team": [float(len(text)) for text in responses["low"]]}
"""


def test_error_on_one_rank_ends_all_and_ranks_hold_only_their_models(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(REWARD)
    keys = ["reward=function", f"reward.function={tmp_path / 'reward.py'}:reward", place(actor="0", critic="1")]
    fault = "debug_faults=[backward:error:2:1]"  # of rank 1, while rank 0 updates the actors
    command = ["ippo_cli.cli.train", *SMALL, *RUN, *keys, fault, f"output_dir={tmp_path}"]
    codes = finish(start_ranks(*command, folder=tmp_path, REPORTS=str(tmp_path)), limit_s=200)
    assert 0 not in codes, read_output(tmp_path)
    assert "RuntimeError" in next(tmp_path.glob("default/*/errors/rank_1.txt")).read_text()
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["Policy", "ValueModel"]
