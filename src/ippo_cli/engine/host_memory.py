"""Host memory: the limit of this process, what is available, and returning freed memory to the system."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SCARCE_FRACTION = 0.25
"""Fraction of the memory limit; with less than it available, freed memory is returned to the system."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory limit of this process and the available part of it, in bytes."""

    total: int
    available: int

    @property
    def is_scarce(self) -> bool:
        return self.available < SCARCE_FRACTION * self.total


def host_memory(root: Path = Path("/")) -> HostMemory:
    """The minimum over this machine and the control groups of this process with a limit, such as a container's or a
    SLURM job's. `root` contains `/proc` and `/sys`.
    """
    machine = _machine_memory(root)
    limits = [machine, *_cgroup_limits(root, machine.total)]
    return HostMemory(total=min(limit.total for limit in limits), available=min(limit.available for limit in limits))


def release_free_memory() -> None:
    """Return memory that this process has freed and glibc still holds to the system, if memory is scarce.

    Mini-batches of different lengths leave free blocks that the next ones do not fit, so that a process grows to two or
    three times the size of its tensors. Returning them takes some 15 ms, and touching the pages again up to a tenth of
    an update: with enough memory they are kept. No-op without glibc.
    """
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None and host_memory().is_scarce:
        trim(0)


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _machine_memory(root: Path) -> HostMemory:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = _parse_fields(root / "proc" / "meminfo").get("MemAvailable:")
    return HostMemory(total=total, available=total if available is None else 1024 * available)


def _cgroup_limits(root: Path, most: int) -> Iterator[HostMemory]:
    """Limits below `most` of all control groups of this process, of both cgroup versions."""
    for version, folder in _mounted_cgroups(root):
        total = _read_number(folder / version.limit)
        # Groups without a limit are skipped: reading the root's statistics takes seconds on machines with many
        # groups.
        if total is not None and 0 < total < most:
            statistics = _parse_fields(folder / "memory.stat")
            used = (_read_number(folder / version.usage) or 0) - sum(
                statistics.get(name, 0) for name in version.reclaimable
            )
            yield HostMemory(total=total, available=total - used)


@dataclass(frozen=True, slots=True)
class _CgroupVersion:
    """File names of a control group, and the fields of reclaimable memory in its `memory.stat`."""

    limit: str
    usage: str
    reclaimable: tuple[str, str]


_CGROUP_V1 = _CgroupVersion(
    "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
)
_CGROUP_V2 = _CgroupVersion("memory.max", "memory.current", ("inactive_file", "active_file"))


def _mounted_cgroups(root: Path) -> Iterator[tuple[_CgroupVersion, Path]]:
    """The control group of this process and its parents, if mounted. A container often mounts only its own group, under
    a path that is known only to the host.
    """
    mount = root / "sys" / "fs" / "cgroup"
    paths = {_CGROUP_V1: "", _CGROUP_V2: ""}
    for line in _read_text(root / "proc" / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[_CGROUP_V2] = path
        elif "memory" in controllers.split(","):
            paths[_CGROUP_V1] = path
    for version, top in ((_CGROUP_V1, mount / "memory"), (_CGROUP_V2, mount)):
        inside = top / paths[version].lstrip("/")
        while inside != top and top in inside.parents:
            yield version, inside
            inside = inside.parent
        yield version, top


def _parse_fields(file: Path) -> dict[str, int]:
    """Parse lines of a name and a number."""
    pairs = (line.split()[:2] for line in _read_text(file).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _read_number(file: Path) -> int | None:
    text = _read_text(file).strip()
    return int(text) if text.isdigit() else None


def _read_text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
