"""Memory of this machine: what this process may use of it, what is left, and giving back what was freed."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SCARCE_FRACTION = 0.25
"""Share of what this process may use; with less than it left, freed memory goes back to the system."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes that this process may use and that are left of them."""

    total: int
    left: int

    @property
    def is_scarce(self) -> bool:
        return self.left < SCARCE_FRACTION * self.total


def host_memory(root: Path = Path("/")) -> HostMemory:
    """The least of this machine and the control groups with a limit that this process is in, such as a container's or
    a SLURM job's. `root` is where `/proc` and `/sys` lie."""
    machine = _machine_memory(root)
    found = [machine, *_cgroup_limits(root, machine.total)]
    return HostMemory(total=min(one.total for one in found), left=min(one.left for one in found))


def release_free_memory() -> None:
    """Return to the system what this process has freed and glibc still holds, where memory is scarce.

    Tensors of mini-batches of unlike lengths leave blocks that those of the next ones do not fit into, so that a
    process grows to two or three times what its tensors need. To return them takes some 15 ms, and to touch them anew
    up to a tenth of an update: where there is room they are kept. Nothing is done without glibc.
    """
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None and host_memory().is_scarce:
        trim(0)


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _machine_memory(root: Path) -> HostMemory:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = _parse_fields(root / "proc" / "meminfo").get("MemAvailable:")
    return HostMemory(total=total, left=total if available is None else 1024 * available)


def _cgroup_limits(root: Path, most: int) -> Iterator[HostMemory]:
    """Of every group with a limit below `most` that this process is in, of both versions of control groups."""
    for version, folder in _mounted_cgroups(root):
        total = _read_number(folder / version.limit)
        # Of a group without a limit nothing is read: the root's statistics take seconds on machines with many groups.
        if total is not None and 0 < total < most:
            said = _parse_fields(folder / "memory.stat")
            used = (_read_number(folder / version.usage) or 0) - sum(said.get(name, 0) for name in version.reclaimable)
            yield HostMemory(total=total, left=total - used)


@dataclass(frozen=True, slots=True)
class _CgroupVersion:
    """Names of files of a control group, and in its `memory.stat` of what the system can take back."""

    limit: str
    usage: str
    reclaimable: tuple[str, str]


_CGROUP_V1 = _CgroupVersion(
    "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
)
_CGROUP_V2 = _CgroupVersion("memory.max", "memory.current", ("inactive_file", "active_file"))


def _mounted_cgroups(root: Path) -> Iterator[tuple[_CgroupVersion, Path]]:
    """This process's group and those that it lies in, as far as they are mounted. What is mounted in a container is
    often its own group, under a path that only the machine around it knows."""
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
    """Lines of a name and a number."""
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
