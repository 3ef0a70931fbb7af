"""All actors and critics are updated, and no agent's update depends on another agent's reward."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from small import final_weights, train

REWARD = """
def reward(examples, responses):
    low = [text.count("a") / 3 for text in responses["low"]]
    high = [HIGH for text in responses["high"]]
    return {"agent": {"low": low, "high": high}}
"""
OWN = ["reward=function", "reward.team_weight=0", "reward.agent_weight=1", "evaluation.every=0", "num_iterations=2"]


def run_with(root, name, high):
    file = root / f"{name}.py"
    file.write_text(REWARD.replace("HIGH", high))
    return train(root, *OWN, f"reward.function={file}:reward")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The folder of a run."""
    return run_with(tmp_path_factory.mktemp("one"), "one", "float('j' in text)")


@pytest.mark.slow
def test_update_is_independent_of_other_agents_rewards(tmp_path, first):
    expected, found = final_weights(first), final_weights(run_with(tmp_path, "two", "-len(text) / 5"))
    own = [name for name in expected if name.startswith("low/")]
    others = [name for name in expected if name.startswith("high/")]
    assert own
    assert all(torch.equal(expected[name], found[name]) for name in own)
    assert any(not torch.equal(expected[name], found[name]) for name in others if "/actor/" in name)
    assert any(not torch.equal(expected[name], found[name]) for name in others if "/critic/" in name)


@pytest.mark.slow
def test_all_actors_and_critics_are_updated(first):
    weights = final_weights(first)
    for agent in ("low", "high"):
        initial = load_file(first / "initial" / agent / "model.safetensors")
        for name, before in initial.items():
            assert not torch.equal(weights[f"{agent}/actor/{name}"], before), f"{agent}'s {name} did not move"
        critic = f"{agent}/critic/"
        head = [value for name, value in weights.items() if name.startswith(critic) and "out.weight" in name]
        assert head
        assert all(value.abs().sum() > 0 for value in head), "the value head is still zero"
