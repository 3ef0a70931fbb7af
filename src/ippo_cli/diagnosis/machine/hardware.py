"""Cores, memory, GPUs and disks of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ippo_cli.config.text import format_bytes
from ippo_cli.diagnosis.machine.problem import Facts, Problem
from ippo_cli.engine.host_cpus import host_cpus
from ippo_cli.engine.host_memory import host_memory
from ippo_cli.engine.number_formats import has_bf16_instructions

GIB = 2**30
LITTLE_MEMORY, LITTLE_DISK = 2 * GIB, 5 * GIB
NO_DISK = GIB // 2
COMMAND_TIMEOUT_S = 10


def hardware_facts(output_dir: Path) -> dict[str, Facts]:
    """Facts by section: `cpu`, `memory`, `gpu` and `disk`."""
    cpus, memory = host_cpus(), host_memory()
    return {
        "cpu": {
            "cores": cpus.machine,
            "allowed": cpus.allowed,
            "cgroup_limit": cpus.limit,
            "bf16_instructions": has_bf16_instructions(),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        },
        "memory": {
            "machine": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "limit": memory.total,
            "available": memory.available,
        },
        "gpu": _gpu_facts(),
        "disk": _disk_facts(output_dir),
    }


def _gpu_facts() -> Facts:
    """GPUs as the driver lists them, without torch."""
    fields = "name,memory.total,memory.used,driver_version"
    listed = run_quietly("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader")
    return {
        "devices": listed.splitlines() if listed else [],
        "nvidia_smi": shutil.which("nvidia-smi"),
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def run_quietly(*command: str) -> str | None:
    """The standard output of a command; None if it is missing, fails or takes too long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _disk_facts(output_dir: Path) -> Facts:
    existing = output_dir.absolute()
    while not existing.exists():
        existing = existing.parent
    usage = shutil.disk_usage(existing)
    return {
        "output_dir": str(output_dir),
        "free": usage.free,
        "total": usage.total,
        "is_writable": os.access(existing, os.W_OK | os.X_OK),
    }


def hardware_problems(facts: dict[str, Facts]) -> Iterator[Problem]:
    """Little memory or disk, folders without write permission, more threads than cores, GPUs without a driver."""
    memory, disk, cpu, gpu = facts["memory"], facts["disk"], facts["cpu"], facts["gpu"]
    if not disk["is_writable"]:
        yield Problem(
            f"output_dir={disk['output_dir']} cannot be written", "set output_dir to a folder of yours", is_severe=True
        )
    if disk["free"] < LITTLE_DISK:
        yield Problem(
            f"the disk of output_dir={disk['output_dir']} has {format_bytes(disk['free'])} free",
            "free some with ippo-runs clean and ippo-runs remove, or set output_dir to another disk",
            is_severe=disk["free"] < NO_DISK,
        )
    if memory["available"] < LITTLE_MEMORY:
        yield Problem(
            f"{format_bytes(memory['available'])} of {format_bytes(memory['limit'])} memory are available",
            "end other processes, or raise the memory limit of the container or job",
        )
    usable = min(cpu["allowed"], cpu["cgroup_limit"] or cpu["allowed"])
    threads = cpu["OMP_NUM_THREADS"]
    if threads is not None and threads.isdigit() and int(threads) > max(usable, 1):
        yield Problem(
            f"OMP_NUM_THREADS={threads} is more than the {usable:g} usable cores",
            f"set OMP_NUM_THREADS={max(int(usable), 1)}, or launch.threads",
        )
    if gpu["nvidia_smi"] and not gpu["devices"]:
        yield Problem("nvidia-smi lists no GPU", "check the driver with nvidia-smi")
