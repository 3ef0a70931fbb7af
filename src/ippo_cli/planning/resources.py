"""Memory and disk space that a run needs, compared with what its machines have."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ippo_cli.config.batch_sizes import BatchSizes
from ippo_cli.config.errors import PreflightError
from ippo_cli.config.schema import Config, Device, PlanConfig
from ippo_cli.engine.host_memory import host_memory
from ippo_cli.planning.memory import GIB, MemoryEstimate, checkpoint_bytes, estimate_memory, snapshot_bytes
from ippo_cli.planning.model_specs import ModelSpecs
from ippo_cli.tasks.eval_rows import count_eval_episodes
from ippo_cli.tasks.task import Task

STAGE_OVERRIDES = (
    ("deepspeed=zero2", {"stage": 2, "offload_optimizer": False, "offload_params": False}),
    ("deepspeed=zero3", {"stage": 3, "offload_optimizer": False, "offload_params": False}),
    ("deepspeed=zero3_offload", {"stage": 3, "offload_optimizer": True, "offload_params": True}),
)
MEMORY_ADVICE = {
    "load": "use a higher ZeRO stage, or a smaller model",
    "rollout": "lower rollout.decode_batch_size or rollout.max_new_tokens, shorten the prompts, or at stage 3 set "
    "rollout.zero3_gather=layer",
    "targets": "lower deepspeed.forward_batch_tokens or deepspeed.logit_chunk_tokens",
    "update": "lower deepspeed.micro_batch_tokens, or set gradient_checkpointing=true for actor and critic",
    "save": "use a higher ZeRO stage, or a smaller model",
}
"""How to reduce the memory of each phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Memory in bytes that the ranks on one machine share."""

    device: str  # `cpu` or `cuda`
    host_bytes: int  # host memory
    gpu_bytes: int  # memory of the smallest GPU; 0 on a CPU
    ranks: int  # on this machine
    ranks_per_device: int

    def memory_shortfall(self, device: float, host: float) -> tuple[str, float, float] | None:
        """(name, needed, available) of the memory that is too small for these bytes per rank; None if all fits."""
        if self.device == "cuda":
            if device * self.ranks_per_device > self.gpu_bytes:
                return "GPU", device * self.ranks_per_device, self.gpu_bytes
            return ("machine", host * self.ranks, self.host_bytes) if host * self.ranks > self.host_bytes else None
        needed = (device + host) * self.ranks
        return ("machine", needed, self.host_bytes) if needed > self.host_bytes else None


def device_kind(wanted: Device) -> str:
    """`cuda` or `cpu`. Raises `PreflightError` if CUDA is requested but unavailable."""
    cuda = torch.cuda.is_available() if wanted is Device.auto else wanted is Device.cuda
    if cuda and not torch.cuda.is_available():
        raise PreflightError("launch.device=cuda, but no CUDA device is available; use launch.device=cpu")
    return "cuda" if cuda else "cpu"


def this_machine(device: str, ranks: int) -> Machine:
    """The current machine, with `ranks` training processes on it."""
    if device == "cpu":
        return Machine(device=device, host_bytes=host_memory().total, gpu_bytes=0, ranks=ranks, ranks_per_device=ranks)
    count = torch.cuda.device_count()
    return Machine(
        device=device,
        host_bytes=host_memory().total,
        gpu_bytes=min(torch.cuda.get_device_properties(number).total_memory for number in range(count)),
        ranks=ranks,
        ranks_per_device=-(-ranks // count),
    )


def planned_machine(plan: PlanConfig) -> Machine | None:
    """The machine described by `plan.*`, with the most ranks of any machine; None if `plan.devices` is not set."""
    if plan.devices is None:
        return None
    assert plan.per_machine is not None
    assert plan.memory_gib is not None
    assert plan.machine_memory_gib is not None
    return Machine(
        device="cuda",
        host_bytes=int(plan.machine_memory_gib * GIB),
        gpu_bytes=int(plan.memory_gib * GIB),
        ranks=min(plan.devices, plan.per_machine),
        ranks_per_device=1,
    )


def estimate_run_memory(
    config: Config, batch_sizes: BatchSizes, task: Task, specs: ModelSpecs, ranks: int, device: str
) -> MemoryEstimate:
    """Estimate each rank's memory on a device of this kind."""
    evaluated = count_eval_episodes(len(task.held_out), config.evaluation)
    rows = max(batch_sizes.samples_per_rank[1], -(-max(evaluated.values()) // ranks))
    return estimate_memory(config, specs.shapes, ranks, rows, device, specs.reward_models)


def memory_error(config: Config, specs: ModelSpecs, memory: MemoryEstimate, machine: Machine, ranks: int) -> str | None:
    """The text of a `PreflightError` if weights, optimizer states and gradients alone do not fit; else None."""
    shortfall = machine.memory_shortfall(memory.certain_bytes, memory.host_bytes)
    if shortfall is None:
        return None
    place, needed, available = shortfall
    fitting = [
        option
        for option, settings in STAGE_OVERRIDES
        if _fits(replace(config, deepspeed=replace(config.deepspeed, **settings)), specs, machine, ranks)
    ]
    remedy = f"use {fitting[0]}" if fitting else "use a smaller model, or more machines or GPUs"
    return (
        f"deepspeed.stage={config.deepspeed.stage} needs at least "
        f"{(memory.certain_bytes + memory.host_bytes) / GIB:.1f} GiB for weights, optimizer states and "
        f"gradients in each of {ranks} process{'es' if ranks > 1 else ''}; those on "
        f"this {place} need {needed / GIB:.1f} GiB, and it has {available / GIB:.1f}; {remedy}"
    )


def memory_warning(memory: MemoryEstimate, machine: Machine) -> str | None:
    """A warning if the estimated peak memory does not fit; else None."""
    phase, device = memory.peak_phase
    shortfall = machine.memory_shortfall(device, memory.host_bytes)
    if shortfall is None:
        return None
    place, needed, available = shortfall
    return (
        f"warning: {phase} may need {needed / GIB:.1f} GiB of this {place}, which has {available / GIB:.1f}; "
        f"{MEMORY_ADVICE[phase]}"
    )


def required_disk_bytes(config: Config, specs: ModelSpecs, ranks: int) -> tuple[float, float]:
    """Bytes of one checkpoint, and of all checkpoints and snapshots that exist at the same time."""
    size = checkpoint_bytes(config, specs.shapes, ranks)
    most = size * (config.checkpoint.keep + config.checkpoint.best + 1)  # 1: the one being written
    return size, most + snapshot_bytes(config, specs.shapes)


def free_disk_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, which may not exist yet."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def _fits(config: Config, specs: ModelSpecs, machine: Machine, ranks: int) -> bool:
    memory = estimate_memory(config, specs.shapes, ranks, 1, machine.device, specs.reward_models)
    return machine.memory_shortfall(memory.certain_bytes, memory.host_bytes) is None
