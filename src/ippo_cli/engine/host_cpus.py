"""CPU cores that this process may use: affinity and control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostCpus:
    """Cores of the machine, cores that the process may run on, and the limit of its control groups in cores."""

    machine: int
    allowed: int
    limit: float | None  # None without a limit

    @property
    def usable(self) -> float:
        """Cores that the process can use at the same time."""
        return self.allowed if self.limit is None else min(self.allowed, self.limit)


def host_cpus(root: Path = Path("/")) -> HostCpus:
    """The cores of this process. `root` contains `/proc` and `/sys`."""
    machine = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    return HostCpus(machine, allowed, min(_cgroup_limits(root), default=None))


def _cgroup_limits(root: Path) -> Iterator[float]:
    """Limits in cores of the control groups of this process and of their parents, of both cgroup versions."""
    mount = root / "sys" / "fs" / "cgroup"
    for top, path in (*_cgroup_paths(root, mount),):
        folder = top / path.lstrip("/")
        while folder != top.parent and (folder == top or top in folder.parents):
            if (limit := _read_limit(folder)) is not None:
                yield limit
            folder = folder.parent


def _cgroup_paths(root: Path, mount: Path) -> Iterator[tuple[Path, str]]:
    for line in _read_text(root / "proc" / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield mount, path
        elif "cpu" in controllers.split(","):
            yield mount / "cpu", path


def _read_limit(folder: Path) -> float | None:
    quota, _, period = _read_text(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota = _read_text(folder / "cpu.cfs_quota_us").strip()
        period = _read_text(folder / "cpu.cfs_period_us").strip()
    is_known = quota.isdigit() and period.isdigit() and int(period) > 0
    return int(quota) / int(period) if is_known else None


def _read_text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
