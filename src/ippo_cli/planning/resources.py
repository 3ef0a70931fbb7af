"""Memory and disk space that a run needs, compared with what its machines have."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from ippo_cli.config.batch_sizes import BatchSizes
from ippo_cli.config.errors import PreflightError
from ippo_cli.config.placement import format_ranks, read_rollout_devices
from ippo_cli.config.schema import Config, Device
from ippo_cli.config.text import join_names
from ippo_cli.engine.host_memory import host_memory
from ippo_cli.planning.memory import GIB, checkpoint_bytes, estimate_memory, stored_policy_bytes
from ippo_cli.planning.model_memory import MemoryEstimate
from ippo_cli.planning.model_specs import ModelSpecs
from ippo_cli.planning.run_memory import (
    Machine,
    RunMemory,
    ServerMemory,
    estimate_server_memory,
    ranks_with_same_models,
)
from ippo_cli.tasks.eval_rows import count_eval_episodes
from ippo_cli.tasks.task import Task


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


def planned_machine(config: Config) -> Machine | None:
    """The machine described by `plan.*`, with the most ranks of any machine; None if `plan.devices` is not set."""
    plan = config.plan
    if plan.devices is None:
        return None
    assert plan.per_machine is not None
    assert plan.memory_gib is not None
    assert plan.machine_memory_gib is not None
    return Machine(
        device="cuda",
        host_bytes=int(plan.machine_memory_gib * GIB),
        gpu_bytes=int(plan.memory_gib * GIB),
        ranks=min(plan.devices, plan.per_machine) - len(read_rollout_devices(config)),
        ranks_per_device=1,
    )


def estimate_run_memory(
    config: Config, batch_sizes: BatchSizes, task: Task, specs: ModelSpecs, ranks: int, device: str, rank: int = 0
) -> MemoryEstimate:
    """Estimate a rank's memory on a device of this kind."""
    rows = -(-count_rollout_rows(config, batch_sizes, task, ranks) // ranks)
    return estimate_memory(config, specs.shapes, ranks, rows, device, specs.reward_models, rank)


def count_rollout_rows(config: Config, batch_sizes: BatchSizes, task: Task, ranks: int) -> int:
    """Rows of an agent in the largest rollout, of all ranks."""
    evaluated = count_eval_episodes(len(task.held_out), config.evaluation)
    return max(batch_sizes.samples_per_rank[1] * ranks, *evaluated.values())


def estimate_all_memory(
    config: Config, batch_sizes: BatchSizes, task: Task, specs: ModelSpecs, ranks: int, device: str
) -> RunMemory:
    """Estimate the memory of all ranks and of the servers' devices."""
    return RunMemory(
        {
            group: estimate_run_memory(config, batch_sizes, task, specs, ranks, device, group[0])
            for group in ranks_with_same_models(config, ranks)
        },
        estimate_server_memory(config, specs.shapes, ranks, count_rollout_rows(config, batch_sizes, task, ranks)),
    )


def memory_error(config: Config, memory: RunMemory, machine: Machine) -> str | None:
    """What is missing if weights, optimizer states and gradients alone do not fit; else None."""
    shortfall = memory.find_shortfall(machine, _certain_bytes)
    if shortfall is None:
        return None if memory.servers is None else _server_error(memory.servers, machine)
    estimate = memory.by_ranks[shortfall.ranks]
    where = f"in each of {memory.ranks} process{'es' if memory.ranks > 1 else ''}"
    if len(memory.by_ranks) > 1:
        where = f"on {format_rank_group(shortfall.ranks, estimate)}"
    return (
        f"deepspeed.stage={config.deepspeed.stage} needs at least "
        f"{(estimate.certain_bytes + estimate.host_bytes) / GIB:.1f} GiB for weights, optimizer states and "
        f"gradients {where}; those on this {shortfall.place} need {shortfall.needed / GIB:.1f} GiB, and it has "
        f"{shortfall.available / GIB:.1f}"
    )


def memory_warning(memory: RunMemory, machine: Machine) -> str | None:
    """What is missing if the estimated peak memory does not fit; else None."""
    shortfall = memory.find_shortfall(machine, lambda estimate: estimate.peak_phase[1])
    if shortfall is None:
        return None if memory.servers is None else _server_warning(memory.servers, machine)
    estimate = memory.by_ranks[shortfall.ranks]
    phase = estimate.peak_phase[0]
    where = f" on {format_rank_group(shortfall.ranks, estimate)}" if len(memory.by_ranks) > 1 else ""
    return (
        f"{phase}{where} may need {shortfall.needed / GIB:.1f} GiB of this {shortfall.place}, which has "
        f"{shortfall.available / GIB:.1f}"
    )


def format_rank_group(ranks: tuple[int, ...], memory: MemoryEstimate) -> str:
    """Ranks and their models: `ranks 0-5 (solo actor and solo critic)`."""
    models = join_names([model.name for model in (*memory.trained, *memory.frozen)])
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)} ({models or 'engines'})"


def required_disk_bytes(config: Config, specs: ModelSpecs, ranks: int) -> tuple[float, float]:
    """Bytes of one checkpoint, and of all checkpoints and snapshots that exist at the same time."""
    size = checkpoint_bytes(config, specs.shapes, ranks)
    return size, size * config.checkpoint.max_on_disk + stored_policy_bytes(config, specs.shapes)


def free_disk_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, which may not exist yet."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def _server_error(memory: ServerMemory, machine: Machine) -> str | None:
    if machine.device == "cpu" or memory.weight_bytes <= machine.gpu_bytes:
        return None
    return (
        f"launch.placement gives device {format_ranks(memory.devices)} of each machine to servers, and their weights "
        f"need {memory.weight_bytes / GIB:.1f} GiB on a device, which has {machine.gpu_bytes / GIB:.1f}"
    )


def _server_warning(memory: ServerMemory, machine: Machine) -> str | None:
    needed = memory.weight_bytes + memory.cache_bytes
    if machine.device == "cpu" or needed <= machine.gpu_bytes:
        return None
    return (
        f"rollout may need {needed / GIB:.1f} GiB of device {format_ranks(memory.devices)} of each machine, "
        f"which has {machine.gpu_bytes / GIB:.1f}"
    )


def _certain_bytes(memory: MemoryEstimate) -> float:
    return memory.certain_bytes
