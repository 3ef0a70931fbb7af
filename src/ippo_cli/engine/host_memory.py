"""Memory of this machine: what this process may use of it, what is left, and giving back what was freed."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SCARCE = 0.25
"""Share of what this process may use; with less than it left, freed memory goes back to the system."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes that this process may use and that are left of them."""

    total: int
    left: int

    @property
    def scarce(self) -> bool:
        return self.left < SCARCE * self.total


def host_memory(root: Path = Path("/")) -> HostMemory:
    """The least of this machine and the control groups with a limit that this process is in, such as a container's or
    a SLURM job's. `root` is where `/proc` and `/sys` lie."""
    machine = _of_machine(root)
    found = [machine, *_of_groups(root, machine.total)]
    return HostMemory(total=min(one.total for one in found), left=min(one.left for one in found))


def give_back_freed() -> None:
    """Return to the system what this process has freed and glibc still holds, where memory is scarce.

    Tensors of mini-batches of unlike lengths leave blocks that those of the next ones do not fit into, so that a
    process grows to two or three times what its tensors need. To return them takes some 15 ms, and to touch them anew
    up to a tenth of an update: where there is room they are kept. Nothing is done without glibc.
    """
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None and host_memory().scarce:
        trim(0)


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _of_machine(root: Path) -> HostMemory:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = _fields(root / "proc" / "meminfo").get("MemAvailable:")
    return HostMemory(total=total, left=total if available is None else 1024 * available)


def _of_groups(root: Path, most: int) -> Iterator[HostMemory]:
    """Of every group with a limit below `most` that this process is in, of both versions of control groups."""
    for version, folder in _groups(root):
        total = _number(folder / version.limit)
        # Of a group without a limit nothing is read: the root's statistics take seconds on machines with many groups.
        if total is not None and 0 < total < most:
            said = _fields(folder / "memory.stat")
            used = (_number(folder / version.usage) or 0) - sum(said.get(name, 0) for name in version.reclaimable)
            yield HostMemory(total=total, left=total - used)


@dataclass(frozen=True, slots=True)
class _Version:
    """Names of files of a control group, and in its `memory.stat` of what the system can take back."""

    limit: str
    usage: str
    reclaimable: tuple[str, str]


_FIRST = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_SECOND = _Version("memory.max", "memory.current", ("inactive_file", "active_file"))


def _groups(root: Path) -> Iterator[tuple[_Version, Path]]:
    """This process's group and those that it lies in, as far as they are mounted. What is mounted in a container is
    often its own group, under a path that only the machine around it knows."""
    mount = root / "sys" / "fs" / "cgroup"
    paths = {_FIRST: "", _SECOND: ""}
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[_SECOND] = path
        elif "memory" in controllers.split(","):
            paths[_FIRST] = path
    for version, top in ((_FIRST, mount / "memory"), (_SECOND, mount)):
        inside = top / paths[version].lstrip("/")
        while inside != top and top in inside.parents:
            yield version, inside
            inside = inside.parent
        yield version, top


def _fields(file: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    pairs = (line.split()[:2] for line in _text(file).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
