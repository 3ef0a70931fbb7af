"""Memory of inference engines in the plan of a rank."""

from __future__ import annotations

from typing import Any

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.planning.memory import estimate_memory
from ippo_cli.planning.model_memory import MemoryEstimate
from ippo_cli.planning.model_specs import read_model_specs
from ippo_cli.planning.sampler_memory import SamplerMemory, estimate_sampler_memory
from ippo_cli.tasks.task import load_task

ROWS = 8


def estimate(device: str, *overrides: str, ranks: int = 2, **options: Any) -> SamplerMemory:
    config = load_config(["task=sorting_solo", "rollout=vllm", *overrides])
    specs = read_model_specs(config, load_task(config.task, config.seed))
    return estimate_sampler_memory(config, specs.shapes, ranks, ROWS, device, **options)


SERVER = "rollout.vllm.mode=server"
ALONE = "rollout.vllm.ranks_per_server=1"


def test_ranks_on_a_cpu_share_the_weights_of_a_server_and_have_their_rows() -> None:
    own, shared = estimate("cpu", SERVER, ALONE), estimate("cpu", SERVER)
    assert shared.weights == own.weights / 2 > 0
    assert shared.caches == own.caches > 0
    assert own == estimate("cpu")
    assert shared.resident == shared.weights + shared.caches


def test_gpu_of_a_servers_first_rank_has_the_server_whole() -> None:
    own, shared = estimate("cuda", SERVER, ALONE), estimate("cuda", SERVER)
    assert shared.weights == own.weights > 0
    assert shared.caches == 2 * own.caches
    assert own.resident > 0
    inside = estimate("cuda")
    assert (inside.weights, inside.resident) == (own.weights, 0.0)  # it sleeps while the rank trains


@pytest.mark.parametrize(
    "elsewhere", [{"engine_devices": (6, 7)}, {"url": "rollout.vllm.url=[http://node7:8000,http://node8:8000]"}]
)
def test_servers_with_devices_of_their_own_take_nothing(elsewhere: dict[str, Any]) -> None:
    url = elsewhere.pop("url", SERVER)
    assert estimate("cuda", SERVER, url, **elsewhere).resident == 0.0


def test_size_of_the_cache_can_be_set() -> None:
    cache = "rollout.vllm.kv_cache_gib=0.5"
    assert estimate("cpu", SERVER, ALONE, cache).caches == 2**29
    assert estimate("cpu", SERVER, cache).caches == 2**28


def test_engines_are_part_of_the_estimate() -> None:
    config = load_config(["task=sorting_solo", "rollout=vllm"])
    specs = read_model_specs(config, load_task(config.task, config.seed))
    plain = estimate_memory(load_config(["task=sorting_solo"]), specs.shapes, 2, ROWS, "cpu")
    found = estimate_memory(config, specs.shapes, 2, ROWS, "cpu")
    assert found.resident_bytes == plain.resident_bytes + estimate("cpu").resident


def test_verification_of_drafts_is_part_of_the_estimate() -> None:
    def memory(*overrides: str) -> MemoryEstimate:
        config = load_config(["task=sorting_solo", *overrides])
        shapes = read_model_specs(config, load_task(config.task, config.seed)).shapes
        return estimate_memory(config, shapes, 1, ROWS, "cpu")

    own, exact = memory(), memory("rollout=vllm", "rollout.on_policy=exact")
    approximate = memory("rollout=vllm")
    assert exact.kv_cache_bytes == own.kv_cache_bytes > 0
    assert approximate.kv_cache_bytes == 0
    assert exact.sampler == approximate.sampler
