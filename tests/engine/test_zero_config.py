"""The DeepSpeed configuration: complete, new per call, and without unsuitable defaults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ippo_cli.engine.zero_config import live_elements, prefetch_elements, zero_config

PLAIN: dict[str, Any] = {
    "stage": 2,
    "dtype": "fp32",
    "offload_optimizer": False,
    "offload_params": False,
    "reduce_bucket_size": 1_000_000,
    "prefetch_bucket_size": 30,
    "persistence_threshold": 10,
    "max_live_parameters": 20,
    "max_grad_norm": 0.5,
}


def test_arguments_at_deepspeed_keys() -> None:
    config = zero_config(**{**PLAIN, "stage": 3, "dtype": "bf16", "offload_optimizer": True, "offload_params": True})
    partitioning = config["zero_optimization"]
    assert config["gradient_clipping"] == 0.5
    assert config["bf16"]["enabled"]
    assert partitioning["stage"] == 3
    assert partitioning["reduce_bucket_size"] == partitioning["allgather_bucket_size"] == 1_000_000
    assert partitioning["stage3_param_persistence_threshold"] == 10
    assert partitioning["stage3_max_live_parameters"] == partitioning["stage3_max_reuse_distance"] == 20
    assert partitioning["stage3_prefetch_bucket_size"] == 30
    assert partitioning["offload_optimizer"]["device"] == partitioning["offload_param"]["device"] == "cpu"


def test_small_model_sharded_by_default() -> None:
    found = [live_elements(wanted, size) for wanted, size in ((None, 1600), (None, 10**11), (0, 1600), (10**9, 1600))]
    assert found == [200, 10**9, 0, 10**9]


def test_prefetch_limit() -> None:
    found = [prefetch_elements(live, parameters) for live, parameters in ((10**9, 1600), (10, 1600), (10**9, 10**11))]
    assert found == [100, 10, 50_000_000]


def test_accumulation_and_clipping() -> None:
    config = zero_config(**{**PLAIN, "max_grad_norm": 0})
    assert config["managed_gradient_accumulation"] is False
    assert config["gradient_accumulation_steps"] == 1
    assert config["gradient_clipping"] == 0.0
    assert config["data_types"] == {"grad_accum_dtype": "fp32"}
    assert config["communication_data_type"] == "fp32"


def test_no_offload_by_default() -> None:
    partitioning = zero_config(**PLAIN)["zero_optimization"]
    assert partitioning["offload_optimizer"] is None
    assert partitioning["offload_param"] is None


def test_stage_0_in_bf16_runs_as_stage_1() -> None:
    stages = [zero_config(**{**PLAIN, "stage": s, "dtype": "bf16"})["zero_optimization"]["stage"] for s in range(4)]
    assert stages == [1, 1, 2, 3]
    assert zero_config(**{**PLAIN, "stage": 0})["zero_optimization"]["stage"] == 0


def test_overlap_comm_only_at_stage_3() -> None:
    overlaps = [zero_config(**{**PLAIN, "stage": s})["zero_optimization"]["overlap_comm"] for s in range(4)]
    assert overlaps == [False, False, False, True]


def test_new_json_dict_per_call() -> None:
    first, second = zero_config(**PLAIN), zero_config(**PLAIN)
    first["zero_optimization"]["stage"] = 3
    first["bf16"]["enabled"] = True
    assert second["zero_optimization"]["stage"] == 2
    assert second == zero_config(**PLAIN) == json.loads(json.dumps(second))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stage": 4}, "stage=4; ZeRO has stages 0 1 2 3"),
        ({"dtype": "fp16"}, "dtype=fp16; use one of fp32 bf16"),
        ({"stage": 0, "offload_optimizer": True}, "use stage 1, 2 or 3"),
        ({"stage": 2, "offload_params": True}, "use stage 3 instead of 2"),
    ],
)
def test_invalid_combinations_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        zero_config(**{**PLAIN, **change})
