"""The DeepSpeed configuration, with every relevant key set explicitly."""

from __future__ import annotations

from typing import Any, Literal

MAX_PREFETCH = 50_000_000  # elements that stage 3 prefetches; DeepSpeed's default
PREFETCHED = 16  # maximum prefetch as a fraction of the model, since prefetched weights are briefly held twice
MAX_LIVE = 1_000_000_000  # elements that stage 3 keeps gathered by default; DeepSpeed's default
LIVE = 8  # maximum as a fraction of a smaller model, which would otherwise not be sharded


def zero_config(
    *,
    stage: int,
    dtype: Literal["fp32", "bf16"],
    offload_optimizer: bool,
    offload_params: bool,
    reduce_bucket_size: int,
    prefetch_bucket_size: int,
    persistence_threshold: int,
    max_live_parameters: int,
    max_grad_norm: float,
) -> dict[str, Any]:
    """A new DeepSpeed configuration for one engine; sizes are numbers of elements.

    `max_grad_norm=0` disables clipping. In bf16, weights and activations are bf16, while master weights, gradient
    accumulation and gradient communication are fp32, so that the split into micro-batches and ranks hardly matters.
    Stage 0 in bf16 runs as stage 1: DeepSpeed's own stage 0 accumulates micro-batches in bf16 and takes an optimizer
    step on zero gradients when built (one weight decay, one Adam step counted). Raises ValueError for combinations that
    DeepSpeed would ignore.
    """
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage={stage}; ZeRO has stages 0 1 2 3")
    if dtype not in ("fp32", "bf16"):
        raise ValueError(f"dtype={dtype}; use one of fp32 bf16")
    if offload_optimizer and stage == 0:
        raise ValueError("offload_optimizer=true needs a partitioned optimizer; use stage 1, 2 or 3")
    if offload_params and stage != 3:
        raise ValueError(f"offload_params=true needs partitioned parameters; use stage 3 instead of {stage}")
    bf16 = dtype == "bf16"
    return {
        # Placeholders that DeepSpeed requires. The caller runs any number of backward passes and divides by global
        # counts itself; with managed accumulation, stages 1 and 2 would keep only the last micro-batch's gradient.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": float(max_grad_norm),
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        "bf16": {"enabled": bf16, "immediate_grad_update": True, "check_grad_overflow": True},
        "fp16": {"enabled": False},
        # The client's torch optimizer, even with its state on the CPU: no op is compiled.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": _partitioning(
            stage=_with_master_weights(stage, bf16=bf16),
            offload_optimizer=offload_optimizer,
            offload_params=offload_params,
            bucket=reduce_bucket_size,
            prefetch=prefetch_bucket_size,
            persistence=persistence_threshold,
            live=max_live_parameters,
        ),
        "checkpoint": {"tag_validation": "Ignore", "use_node_local_storage": False, "load_universal": False},
        "steps_per_print": None,
        "wall_clock_breakdown": False,
        "memory_breakdown": False,
        "dump_state": False,
        "timers": {"throughput": {"enabled": False}},  # its clock would synchronize the GPU at every forward
        "comms_logger": {"enabled": False},
        "flops_profiler": {"enabled": False},
    }


def effective_stage(stage: int, *, bf16: bool, ranks: int, offload_optimizer: bool, tensor_parallel: int = 1) -> int:
    """The ZeRO stage at which an engine with `stage` runs.

    On one rank stages 1 and 2 have nothing to shard, and copying into their flat buffers costs a tenth of a step. With
    tensor parallelism stage 0 runs as stage 1: its optimizer computes the norm of one rank's gradients.
    """
    if tensor_parallel > 1:
        return max(stage, 1)
    spread = ranks > 1 or offload_optimizer or stage == 3
    return _with_master_weights(stage if spread else 0, bf16=bf16)


def _with_master_weights(stage: int, *, bf16: bool) -> int:
    return 1 if bf16 and stage == 0 else stage


def bucket_elements(wanted: int, parameters: int) -> int:
    """Bucket size, at most the model's size, since buckets are allocated whole; even, as DeepSpeed requires."""
    return min(wanted, parameters) // 2 * 2 + 2


def live_elements(wanted: int | None, parameters: int) -> int:
    """Elements that stage 3 keeps gathered, besides the layer that is computing."""
    return min(MAX_LIVE, parameters // LIVE) if wanted is None else wanted


def prefetch_elements(live: int, parameters: int) -> int:
    """Elements that stage 3 prefetches, with at most `live` gathered elements."""
    return min(MAX_PREFETCH, live, parameters // PREFETCHED)


def _partitioning(
    *,
    stage: int,
    offload_optimizer: bool,
    offload_params: bool,
    bucket: int,
    prefetch: int,
    persistence: int,
    live: int,
) -> dict[str, Any]:
    """The ZeRO section: sharding, offloading, and bucket sizes."""
    to_cpu = {"device": "cpu", "pin_memory": True}
    return {
        "stage": stage,
        "offload_optimizer": dict(to_cpu) if offload_optimizer else None,
        "offload_param": dict(to_cpu) if offload_params else None,
        "contiguous_gradients": True,
        "overlap_comm": stage == 3,  # rejected below stage 2 when the caller accumulates
        "reduce_scatter": True,
        "reduce_bucket_size": bucket,
        "allgather_partitions": True,
        "allgather_bucket_size": bucket,
        "round_robin_gradients": False,
        "ignore_unused_parameters": True,
        "load_from_fp32_weights": True,
        "elastic_checkpoint": False,
        "sub_group_size": 1_000_000_000,
        "stage3_prefetch_bucket_size": prefetch,
        "stage3_param_persistence_threshold": persistence,
        "stage3_max_live_parameters": live,
        "stage3_max_reuse_distance": live,
        "stage3_gather_16bit_weights_on_model_save": False,
    }
