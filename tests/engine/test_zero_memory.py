"""Estimated memory of an engine against the tensors that DeepSpeed holds."""

from __future__ import annotations

from typing import Any

import pytest

from ippo_cli.engine.zero_memory import EngineMemory, engine_memory, inference_memory

GIB = 2**30


def memory(
    parameters: int, *, stage: int, width: int, ranks: int, bucket: int = 0, largest: int = 0, offloaded: str = ""
) -> EngineMemory:
    return engine_memory(
        parameters,
        stage=stage,
        width=width,
        ranks=ranks,
        bucket=bucket,
        largest=largest,
        persistent=0,
        live=GIB,
        offload_optimizer="optimizer" in offloaded,
        offload_params="params" in offloaded,
    )


def test_estimates_match_measurements(results: dict[str, Any]) -> None:
    ranks, parameters, held = results["held_bytes"]
    assert len(held) == 11
    for (stage, dtype, offloaded), (bucket, during, after) in held.items():
        width = 4 if dtype == "fp32" else 2
        result = memory(parameters, stage=stage, width=width, ranks=ranks, bucket=bucket, offloaded=offloaded)
        updating = result.weights + result.optimizer + result.gradients + result.buckets + result.host
        assert updating == pytest.approx(during, rel=0.03), (stage, dtype, offloaded, during / parameters)
        if not offloaded:
            assert result.resident == pytest.approx(after, rel=0.03), (stage, dtype, after / parameters)


def test_7b_bf16_model_at_stage_1() -> None:
    result = memory(7_000_000_000, stage=1, width=2, ranks=8)
    assert result.resident / GIB == pytest.approx(48.9, abs=0.05)
    assert result.gradients == 4 * 7_000_000_000


def test_stages_2_and_3_shard_gradients_and_weights() -> None:
    one, two, three = (memory(1_000_000, stage=stage, width=2, ranks=4) for stage in (1, 2, 3))
    assert (one.gradients, two.gradients, three.gradients) == (4_000_000, 1_000_000, 1_000_000)
    assert (one.weights, two.weights, three.weights) == (2_000_000, 2_000_000, 500_000)


def test_offload_moves_memory_to_host() -> None:
    here, away = (
        memory(1000, stage=3, width=2, ranks=2),
        memory(1000, stage=3, width=2, ranks=2, offloaded="optimizer and params"),
    )
    assert here.host == 0 < away.host
    assert away.weights == away.optimizer == away.gradients == 0


def test_small_parameters_unsharded_at_stage_3() -> None:
    spread = {
        "stage": 3,
        "width": 2,
        "ranks": 4,
        "bucket": 0,
        "largest": 0,
        "live": GIB,
        "offload_optimizer": False,
        "offload_params": False,
    }
    assert engine_memory(1000, persistent=1000, **spread).weights == 2000
    assert engine_memory(1000, persistent=0, **spread).weights == 500


def test_inference_memory() -> None:
    trained = memory(1_000_000, stage=3, width=2, ranks=4)
    read = inference_memory(1_000_000, width=2, ranks=4, largest=0, persistent=0, live=GIB, offload_params=False)
    assert (read.weights, read.gathered_weights) == (trained.weights, trained.gathered_weights) == (500_000, 2_000_000)
    assert read.resident == read.weights
    away = inference_memory(1_000_000, width=2, ranks=4, largest=0, persistent=0, live=GIB, offload_params=True)
    assert (away.resident, away.host) == (0, 500_000)


def test_inference_memory_of_one_rank() -> None:
    alone, two = (memory(1000, stage=3, width=2, ranks=ranks) for ranks in (1, 2))
    assert (alone.gathered_weights, alone.decode_weights) == (0, 0)
    assert (two.gathered_weights, two.decode_weights) == (2000, 2000)
    away = memory(1000, stage=3, width=2, ranks=1, offloaded="optimizer and params")
    assert away.gathered_weights == 2000


def test_gathered_memory() -> None:
    kinds = {"stage": 3, "bucket": 0, "offload_optimizer": False, "offload_params": False}
    sizes = {"width": 2, "ranks": 4, "persistent": 0}
    trained = engine_memory(1000, largest=200, live=125, **sizes, **kinds)
    read = inference_memory(1000, largest=200, live=125, offload_params=False, **sizes)
    assert trained.gathered_weights == read.gathered_weights == 2 * 325
    assert engine_memory(1000, largest=950, live=125, **sizes, **kinds).gathered_weights == 2000


def test_peak_with_several_micro_batches() -> None:
    held = memory(1000, stage=0, width=4, ranks=1)
    assert held.update_peak(10_000, has_several=False) == 10_000
    assert held.update_peak(10_000, has_several=True) == 4000 + 10_000
    assert held.update_peak(0, has_several=True) == held.step_buffers == 4000, "a single rank reduces nothing"
    assert memory(1000, stage=0, width=4, ranks=2).step_buffers == 4000 + 4000, "they are copied for reduction"


def test_full_bucket_copied() -> None:
    held = memory(1000, stage=2, width=4, ranks=2, bucket=500)
    # Of half the activations: a share, the bucket, a share of this pass, and the bucket's copy.
    assert held.update_peak(10_000, has_several=True) == 2000 + 2000 + 10_000
    assert held.update_peak(1000, has_several=True) == 2000 + 2000 + 500 + 2000 + 2000


def test_gradient_norm_in_float64() -> None:
    held = memory(1000, stage=2, width=2, ranks=4, largest=200)
    assert held.step_buffers == 4 * 250 + 8 * 200


def test_large_gradients_reduced_in_place() -> None:
    small, large = (memory(size, stage=1, width=2, ranks=8) for size in (400_000_000, 600_000_000))
    assert (small.step_buffers, large.step_buffers) == (1_600_000_000, 0)


def test_gloo_copies() -> None:
    sizes = {"width": 4, "ranks": 8, "bucket": 100, "largest": 0, "persistent": 0, "live": GIB}
    kinds = {"offload_optimizer": False, "offload_params": False}
    gpu, cpu = (engine_memory(1000, stage=3, on_host=on_host, **sizes, **kinds) for on_host in (False, True))
    assert (gpu.reduce_buffers, cpu.reduce_buffers) == (400, 800)
    gpu, cpu = (engine_memory(1000, stage=2, on_host=on_host, **sizes, **kinds) for on_host in (False, True))
    assert (gpu.step_buffers, cpu.step_buffers) == (1000, 4000)


def test_overwritten_mapped_weights_counted() -> None:
    sizes = {"stage": 2, "ranks": 2, "bucket": 0, "largest": 0, "persistent": 0, "live": GIB}
    kinds = {"offload_optimizer": False, "offload_params": False}
    gpu, cpu = (engine_memory(1000, width=2, on_host=on_host, **sizes, **kinds) for on_host in (False, True))
    assert (gpu.load_peak, cpu.load_peak) == (5000, 7000)  # weights, and of a share its copy and float32
    gpu, cpu = (engine_memory(1000, width=4, on_host=on_host, **sizes, **kinds) for on_host in (False, True))
    assert (gpu.load_peak, cpu.load_peak) == (8000, 8000)
