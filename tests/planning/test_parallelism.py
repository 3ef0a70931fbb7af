"""Models that groups of ranks cannot split are refused before their weights are loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from architectures import tiny_config
from small import small_config

from ippo_cli.compose.load import build_config, compose_node, resolve_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config
from ippo_cli.models.shape import empty_model
from ippo_cli.planning.memory import count_groups
from ippo_cli.planning.model_checks import check_model_parallel
from ippo_cli.planning.model_memory import MemoryEstimate
from ippo_cli.planning.prepare import Purpose, load_task_and_reward, prepare


def check(key: str, ranks: int, family: str, **settings: Any) -> None:
    config = build_config(resolve_config(compose_node([f"deepspeed.{key}={ranks}"])))
    check_model_parallel(empty_model(tiny_config(family, **settings)), config.deepspeed, "actor.model=M")


def error(key: str, ranks: int, family: str, **settings: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        check(key, ranks, family, **settings)
    assert raised.value.exit_code == 2
    return str(raised.value)


@pytest.mark.parametrize("key", ["sequence_parallel", "tensor_parallel"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_supported_families(key: str, family: str) -> None:
    check(key, 2, family)  # raises nothing


@pytest.mark.parametrize("key", ["sequence_parallel", "tensor_parallel"])
def test_heads_that_cannot_be_split(key: str) -> None:
    found = error(key, 2, "llama", num_attention_heads=6, num_key_value_heads=3, hidden_size=24)
    assert found == (
        f"deepspeed.{key}=2 does not divide the heads of actor.model=M: 6 for queries, 3 for keys and values; "
        "use one of 1 3"
    )


@pytest.mark.parametrize("family", ["mamba", "jamba"])
def test_sequence_parallel_needs_attention_interface(family: str) -> None:
    found = error("sequence_parallel", 2, family)
    assert "does not support them: all its layers must call attention through the attention interface" in found


def test_sequence_parallel_refuses_rotary_frequencies_of_whole_rows() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    found = error("sequence_parallel", 2, "llama", rope_parameters=rope)
    assert "rope_type=dynamic" in found


@pytest.mark.parametrize(("family", "why"), [("gpt2", "does not exist"), ("phi3", "styles"), ("mixtral", "styles")])
def test_tensor_parallel_needs_plan(family: str, why: str) -> None:
    found = error("tensor_parallel", 2, family)
    assert "splits linear maps by the plan of transformers for" in found
    assert why in found


def test_tensor_parallel_divides_feed_forward_width() -> None:
    found = error("tensor_parallel", 2, "llama", intermediate_size=33)
    assert "does not divide intermediate_size=33 of actor.model=M" in found


def estimate(config: Config, **deepspeed: Any) -> MemoryEstimate:
    config = replace(config, deepspeed=replace(config.deepspeed, **deepspeed))
    task, reward = load_task_and_reward(config, 2, Purpose.plan, print)
    return prepare(config, 2, "cpu", task, reward, report=print).memory.highest


def test_plan_splits_activations_and_models(tmp_path: Path) -> None:
    config, _ = small_config(tmp_path, "critic=separate", "deepspeed=zero2", "deepspeed.logit_chunk_tokens=1")
    plain, sequence = (estimate(config, sequence_parallel=size) for size in (1, 2))
    tensor = estimate(config, tensor_parallel=2)
    # A group has twice the rows of a rank, and splits their tokens.
    assert sequence.trained[0].training_bytes == pytest.approx(plain.trained[0].training_bytes, rel=0.01)
    assert sequence.trained[0].memory == plain.trained[0].memory
    shape, memory = tensor.trained[0].shape, tensor.trained[0].memory
    kept = shape.trained_parameters - shape.split_elements // 2
    assert shape.split_elements > shape.trained_parameters / 2
    assert memory.weights == 4 * kept
    assert memory.optimizer == pytest.approx(12 * kept)
    assert memory.decode_weights == 4 * shape.split_elements
    assert count_groups(replace(config, deepspeed=replace(config.deepspeed, tensor_parallel=2)), 4) == 2
