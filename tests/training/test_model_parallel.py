"""Runs with groups of ranks that split rows or models: equal to a run on one rank, and resumable."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rank_scripts import finish, read_output, start_ranks
from small import assert_metrics_close, final_weights, rows, train, train_on_two_ranks

from ippo_cli.compose.load import build_config, compose_node, resolve_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError

SEQUENCE = ("launch.processes=2", "deepspeed.sequence_parallel=2")
TENSOR = ("launch.processes=2", "deepspeed.tensor_parallel=2")
TWO_ITERATIONS = ("num_iterations=2", "evaluation.every=1", "checkpoint.every=1", "deepspeed.micro_batch_tokens=96")


def assert_same_run(split: Path, alone: Path) -> None:
    assert_metrics_close(rows(split), rows(alone), rel=1e-4, abs=1e-6)
    expected = final_weights(alone)
    for name, weights in final_weights(split).items():
        torch.testing.assert_close(weights, expected[name], rtol=0, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("split", [pytest.param(SEQUENCE, marks=pytest.mark.core), TENSOR])
def test_run_equals_run_on_one_rank(tmp_path: Path, split: tuple[str, ...]) -> None:
    keys = (*TWO_ITERATIONS, "critic=separate", "actor.warmup_iterations=0", "actor.adam_epsilon=1e-3")
    keys = (*keys, "critic.adam_epsilon=1e-3")  # otherwise the first step of a near-zero gradient is its rounding
    alone = train(tmp_path / "alone", *keys)
    assert_same_run(train_on_two_ranks(tmp_path / "split", *keys, *split), alone)


@pytest.mark.slow
@pytest.mark.parametrize("split", [(*SEQUENCE, "deepspeed=zero3"), (*TENSOR, "deepspeed=zero2")])
def test_run_resumes(tmp_path: Path, split: tuple[str, ...]) -> None:
    keys = (*TWO_ITERATIONS, "algorithm=ppo", "critic=value_head", "algorithm.mini_batch_size=8")
    keys = (*keys, "algorithm.kl.loss.coef=0.1", "algorithm.kl.loss.estimator=full", "actor.adam_epsilon=1e-3")
    alone = train(tmp_path / "alone", *keys)
    folder = train_on_two_ranks(tmp_path / "split", *keys, *split, "max_iterations_this_run=1")
    assert rows(folder)[-1]["iteration"] == 1
    command = ["ippo_cli.cli.train", f"resume={folder}", "max_iterations_this_run=null"]
    assert finish(start_ranks(*command, folder=tmp_path), limit_s=300) == [0, 0], read_output(tmp_path)
    assert_same_run(folder, alone)


def error(ranks: int, *overrides: str) -> str:
    config = build_config(resolve_config(compose_node(overrides)))
    with pytest.raises(ConfigError) as raised:
        check_config(config, ranks)
    assert raised.value.exit_code == 2
    return str(raised.value)


@pytest.mark.parametrize("key", ["deepspeed.sequence_parallel=2", "deepspeed.tensor_parallel=2"])
def test_refused_sizes(key: str) -> None:
    assert f"{key} does not divide the number of ranks, 3; use one of 1 3, or a multiple of 2 ranks" in error(3, key)
    heads = error(2, key, "actor.num_heads=1", "actor.hidden_size=32")
    assert f"{key} does not divide actor.num_heads=1 of low; use one of 1, or another actor.num_heads" in heads


@pytest.mark.parametrize(
    ("keys", "remedy"),
    [
        (("deepspeed.sequence_parallel=2", "deepspeed.pack_sequences=false"), "set deepspeed.pack_sequences=true"),
        (("deepspeed.sequence_parallel=2", "deepspeed.tensor_parallel=2"), "set one of them to 1"),
        (("deepspeed.tensor_parallel=2", "deepspeed=zero3"), "use deepspeed=zero1 or zero2"),
        (("deepspeed.tensor_parallel=2", "deepspeed.offload_optimizer=true"), "set deepspeed.offload_optimizer=false"),
        (("deepspeed.tensor_parallel=2", "checkpoint.reshard=true"), "set checkpoint.reshard=false"),
        (("deepspeed.tensor_parallel=2", "actor=lora", "actor.model=M"), "or sequence_parallel with actor=lora"),
    ],
)
def test_refused_combinations(keys: tuple[str, ...], remedy: str) -> None:
    assert remedy in error(2, *keys)
