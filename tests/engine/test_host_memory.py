"""Available memory of a machine and its control groups, and returning freed memory when it is scarce."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ippo_cli.engine import host_memory as module
from ippo_cli.engine.host_memory import HostMemory, host_memory

GIB = 2**30
FRAGMENTS = """
import sys
import torch
from ippo_cli.engine import host_memory as module

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

scarce = sys.argv[1] == "scarce"
module.host_memory = lambda: module.HostMemory(total=100, available=1 if scarce else 99)
raises = torch.ones(2**22)  # glibc maps smaller blocks no longer one by one once this one was freed
del raises
freed, kept = [], []
for _ in range(64):
    freed.append(torch.ones(2**20))
    kept.append(torch.ones(2**10))
kept.append(torch.ones(2**20))  # above all freed blocks, even if smaller ones fill older gaps: glibc trims only the top
freed.clear()
before = resident()
module.release_free_memory()
print(before - resident())
"""


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_machine_limit_without_cgroups(tmp_path: Path) -> None:
    machine = host_memory(written(tmp_path / "here", {"proc/meminfo": "MemTotal:  99 kB\nMemAvailable:    2048 kB\n"}))
    assert machine.available == 2 * 2**20 < machine.total
    unknown = host_memory(tmp_path / "nowhere")
    assert unknown == HostMemory(total=machine.total, available=machine.total)


@pytest.mark.parametrize(
    ("membership", "names", "reclaimable"),
    [
        ("0::/slurm/job_7/step_0\n", ("memory.max", "memory.current"), "inactive_file"),
        (
            "4:cpu:/elsewhere\n3:freezer,memory:/slurm/job_7/step_0\n",
            ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
            "total_inactive_file",
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_smallest_cgroup_is_the_limit(
    tmp_path: Path, membership: str, names: tuple[str, str], reclaimable: str
) -> None:
    below = {
        "proc/meminfo": f"MemAvailable: {2**40}\n",
        "proc/self/cgroup": membership,
    }
    limit, usage = names
    first, _, name = limit.rpartition("/")

    def of(group: str, what: str) -> str:
        return "/".join(part for part in ("sys/fs/cgroup", first, group, what.rpartition("/")[2]) if part)

    below |= {of("slurm/job_7/step_0", name): "max\n", of("slurm/job_7/step_0", usage): f"{GIB}\n"}
    below |= {of("slurm/job_7", name): f"{4 * GIB // 10**3}\n", of("slurm/job_7", usage): f"{3 * GIB // 10**3}\n"}
    below |= {of("slurm/job_7", "memory.stat"): f"anon 5\n{reclaimable} {GIB // 10**3}\n"}
    root = written(tmp_path, below)
    found = host_memory(root)
    assert found.total == 4 * GIB // 10**3
    assert found.available == found.total - (3 * GIB // 10**3 - GIB // 10**3)


@pytest.mark.parametrize("membership", ["0::/machine/of/ours\n", "0::/../ours\n", "", "0::/\n", "4:cpu\n\n9\n"])
def test_container_cgroup_at_root(tmp_path: Path, membership: str) -> None:
    files = {
        "proc/self/cgroup": membership,
        "sys/fs/cgroup/memory.max": "1000\n",
        "sys/fs/cgroup/memory.current": "900\n",
    }
    found = host_memory(written(tmp_path, files))
    assert (found.total, found.available) == (1000, 100)
    assert found.is_scarce
    assert not HostMemory(total=1000, available=250).is_scarce


@pytest.mark.parametrize("limit", ["0", "max", "", str(2**63 - 4096)])
def test_cgroup_without_limit_not_read(tmp_path: Path, limit: str) -> None:
    first = {"sys/fs/cgroup/memory/memory.limit_in_bytes": limit, "sys/fs/cgroup/memory/memory.usage_in_bytes": "7"}
    second = {"sys/fs/cgroup/memory.max": limit, "sys/fs/cgroup/memory.current": "7"}
    assert host_memory(written(tmp_path, first | second)) == host_memory(tmp_path / "nowhere")


def test_file_caches_count_as_available(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory.max": "1000",
        "sys/fs/cgroup/memory.current": "990",
        "sys/fs/cgroup/memory.stat": "anon 190\nfile 800\ninactive_file 100\nactive_file 700\n",
    }
    assert host_memory(written(tmp_path, files)).available == 810


@pytest.mark.skipif(module._LIBC is None or not hasattr(module._LIBC, "malloc_trim"), reason="only glibc keeps blocks")
@pytest.mark.parametrize(("memory", "least", "most"), [("scarce", 128 * 2**20, 2**40), ("plenty", 0, 2**20)])
def test_freed_blocks_returned_when_memory_is_scarce(memory: str, least: int, most: int) -> None:
    command = [sys.executable, "-c", FRAGMENTS, memory]
    given_back = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert least <= given_back <= most
