"""What an engine is said to hold, against the tensors that DeepSpeed holds."""

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


def test_an_engine_holds_what_its_arithmetic_says(results: dict[str, Any]) -> None:
    ranks, parameters, held = results["held_bytes"]
    assert len(held) == 11
    for (stage, dtype, offloaded), (bucket, during, after) in held.items():
        width = 4 if dtype == "fp32" else 2
        said = memory(parameters, stage=stage, width=width, ranks=ranks, bucket=bucket, offloaded=offloaded)
        updating = said.weights + said.optimizer + said.gradients + said.buckets + said.host
        assert updating == pytest.approx(during, rel=0.03), (stage, dtype, offloaded, during / parameters)
        if not offloaded:
            assert said.standing == pytest.approx(after, rel=0.03), (stage, dtype, after / parameters)


def test_7_billion_parameters_in_bf16_on_8_ranks_hold_whole_float32_gradients_at_stage_1() -> None:
    said = memory(7_000_000_000, stage=1, width=2, ranks=8)
    assert said.standing / GIB == pytest.approx(48.9, abs=0.05)
    assert said.gradients == 4 * 7_000_000_000


def test_stage_2_and_3_spread_gradients_and_stage_3_the_weights() -> None:
    one, two, three = (memory(1_000_000, stage=stage, width=2, ranks=4) for stage in (1, 2, 3))
    assert (one.gradients, two.gradients, three.gradients) == (4_000_000, 1_000_000, 1_000_000)
    assert (one.weights, two.weights, three.weights) == (2_000_000, 2_000_000, 500_000)


def test_what_is_offloaded_leaves_the_device_for_the_host() -> None:
    here, away = (
        memory(1000, stage=3, width=2, ranks=2),
        memory(1000, stage=3, width=2, ranks=2, offloaded="optimizer and params"),
    )
    assert here.host == 0 < away.host
    assert away.weights == away.optimizer == away.gradients == 0


def test_small_parameters_stay_whole_at_stage_3() -> None:
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


def test_a_model_that_is_only_read_has_the_weights_of_stage_3_and_nothing_else() -> None:
    trained = memory(1_000_000, stage=3, width=2, ranks=4)
    read = inference_memory(1_000_000, width=2, ranks=4, largest=0, persistent=0, live=GIB, offload_params=False)
    assert (read.weights, read.gathered) == (trained.weights, trained.gathered) == (500_000, 2_000_000)
    assert read.standing == read.weights
    away = inference_memory(1_000_000, width=2, ranks=4, largest=0, persistent=0, live=GIB, offload_params=True)
    assert (away.standing, away.host) == (0, 500_000)


def test_one_rank_reads_its_weights_where_they_are() -> None:
    alone, two = (memory(1000, stage=3, width=2, ranks=ranks) for ranks in (1, 2))
    assert (alone.gathered, alone.decode_weights) == (0, 0)
    assert (two.gathered, two.decode_weights) == (2000, 2000)
    away = memory(1000, stage=3, width=2, ranks=1, offloaded="optimizer and params")
    assert away.gathered == 2000


def test_a_pass_keeps_whole_what_it_may_and_the_parameter_that_goes_beyond() -> None:
    kinds = {"stage": 3, "bucket": 0, "offload_optimizer": False, "offload_params": False}
    sizes = {"width": 2, "ranks": 4, "persistent": 0}
    trained = engine_memory(1000, largest=200, live=125, **sizes, **kinds)
    read = inference_memory(1000, largest=200, live=125, offload_params=False, **sizes)
    assert trained.gathered == read.gathered == 2 * 325
    assert engine_memory(1000, largest=950, live=125, **sizes, **kinds).gathered == 2000


def test_gradients_meet_activations_where_a_step_has_several_micro_batches() -> None:
    held = memory(1000, stage=0, width=4, ranks=1)
    assert held.updating(10_000, has_several=False) == 10_000
    assert held.updating(10_000, has_several=True) == 4000 + 10_000
    assert held.updating(0, has_several=True) == held.step_buffers == 4000, "one rank alone reduces nothing"
    assert memory(1000, stage=0, width=4, ranks=2).step_buffers == 4000 + 4000, "they are copied to be reduced"


def test_a_bucket_is_copied_when_it_is_full() -> None:
    held = memory(1000, stage=2, width=4, ranks=2, bucket=500)
    # Of half the activations: a share, the bucket, a share of this pass alone, and the bucket's copy.
    assert held.updating(10_000, has_several=True) == 2000 + 2000 + 10_000
    assert held.updating(1000, has_several=True) == 2000 + 2000 + 500 + 2000 + 2000


def test_a_norm_is_taken_in_float64_of_the_largest_gradient() -> None:
    held = memory(1000, stage=2, width=2, ranks=4, largest=200)
    assert held.step_buffers == 4 * 250 + 8 * 200


def test_gradients_of_more_than_half_a_billion_weights_are_reduced_where_they_are() -> None:
    small, large = (memory(size, stage=1, width=2, ranks=8) for size in (400_000_000, 600_000_000))
    assert (small.step_buffers, large.step_buffers) == (1_600_000_000, 0)


def test_ranks_on_cpus_have_copies_of_what_they_send() -> None:
    sizes = {"width": 4, "ranks": 8, "bucket": 100, "largest": 0, "persistent": 0, "live": GIB}
    kinds = {"offload_optimizer": False, "offload_params": False}
    gpu, cpu = (engine_memory(1000, stage=3, on_host=on_host, **sizes, **kinds) for on_host in (False, True))
    assert (gpu.reduce_buffers, cpu.reduce_buffers) == (400, 800)
    gpu, cpu = (engine_memory(1000, stage=2, on_host=on_host, **sizes, **kinds) for on_host in (False, True))
    assert (gpu.step_buffers, cpu.step_buffers) == (1000, 4000)


def test_weights_that_rank_0_writes_into_a_mapped_file_are_there_beside_their_flat_copy() -> None:
    sizes = {"stage": 2, "ranks": 2, "bucket": 0, "largest": 0, "persistent": 0, "live": GIB}
    kinds = {"offload_optimizer": False, "offload_params": False}
    gpu, cpu = (engine_memory(1000, width=2, on_host=on_host, **sizes, **kinds) for on_host in (False, True))
    assert (gpu.loading, cpu.loading) == (5000, 7000)  # weights, and of a share its copy and float32
    gpu, cpu = (engine_memory(1000, width=4, on_host=on_host, **sizes, **kinds) for on_host in (False, True))
    assert (gpu.loading, cpu.loading) == (8000, 8000)
