"""The report of a machine: facts, problems first, and no secrets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ippo_cli.config.text import text_width
from ippo_cli.diagnosis.machine.hardware import hardware_facts, hardware_problems
from ippo_cli.diagnosis.machine.problem import Problem
from ippo_cli.diagnosis.machine.report import format_machine, redact_data, to_json_data
from ippo_cli.diagnosis.machine.software import _extra_facts, _package_facts, software_problems
from ippo_cli.engine.host_cpus import host_cpus

GIB = 2**30


def facts(**changes: dict[str, Any]) -> dict[str, Any]:
    """Facts of a machine without problems, with these sections changed."""
    known: dict[str, dict[str, Any]] = {
        "cpu": {"cores": 8, "allowed": 8, "cgroup_limit": None, "OMP_NUM_THREADS": None},
        "memory": {"machine": 64 * GIB, "limit": 64 * GIB, "available": 60 * GIB},
        "gpu": {"devices": [], "nvidia_smi": None, "CUDA_VISIBLE_DEVICES": None},
        "disk": {"output_dir": "outputs", "free": 100 * GIB, "total": 200 * GIB, "is_writable": True},
        "packages": {"torch": {"installed": "2.12.0", "range": ">=2.10", "fits": True}},
        "torch": {"version": "2.12.0", "cuda": None, "cuda_available": False, "gloo": True, "nccl": False},
        "deepspeed": {"version": "0.19.6", "ops": {"cpu_adam": "can be built"}},
        "hub": {"endpoint": "https://huggingface.co", "answer": "not tested"},
    }
    return {name: section | changes.get(name, {}) for name, section in known.items()}


def problems(**changes: dict[str, Any]) -> list[Problem]:
    known = facts(**changes)
    return [*hardware_problems(known), *software_problems(known)]


def test_machine_without_problems() -> None:
    assert problems() == []
    assert format_machine(facts(), []).splitlines()[0] == "no problem found"


@pytest.mark.parametrize(
    ("section", "change", "text", "remedy"),
    [
        ("disk", {"is_writable": False}, "output_dir=outputs cannot be written", "set output_dir"),
        ("disk", {"free": GIB}, "has 1.0 GiB free", "ippo-runs clean"),
        ("memory", {"available": GIB}, "1.0 GiB of 64.0 GiB memory are available", "end other processes"),
        ("cpu", {"OMP_NUM_THREADS": "16"}, "more than the 8 usable cores", "set OMP_NUM_THREADS=8"),
        ("cpu", {"OMP_NUM_THREADS": "4", "cgroup_limit": 2.0}, "more than the 2 usable cores", "OMP_NUM_THREADS=2"),
        ("gpu", {"nvidia_smi": "/usr/bin/nvidia-smi"}, "nvidia-smi lists no GPU", "check the driver"),
        ("gpu", {"devices": ["H100"]}, "torch 2.12.0 has no CUDA support", "install torch for CUDA"),
        ("torch", {"error": "OSError: libcudart"}, "torch cannot be imported (OSError: libcudart)", "reinstall torch"),
        ("deepspeed", {"error": "ImportError: x"}, "deepspeed cannot be imported", "reinstall deepspeed"),
        ("hub", {"answer": "error: timed out"}, "cannot be reached (timed out)", "HF_ENDPOINT"),
        (
            "packages",
            {"torch": {"installed": "2.1", "range": ">=2.10", "fits": False}},
            "torch 2.1 (>=2.10 is needed)",
            "pip install",
        ),
    ],
)
def test_problem_of_a_machine(section: str, change: dict[str, Any], text: str, remedy: str) -> None:
    (problem,) = problems(**{section: change})
    assert text in problem.text
    assert remedy in problem.remedy


def test_gpu_that_torch_does_not_see() -> None:
    hidden = {"devices": ["H100"], "CUDA_VISIBLE_DEVICES": ""}
    (problem,) = problems(gpu=hidden, torch={"cuda": "13.0"})
    assert "sees no GPU" in problem.text
    assert problem.remedy == "CUDA_VISIBLE_DEVICES= hides it"


def test_severe_problems_are_marked() -> None:
    lines = format_machine(facts(), [Problem("a", "b", is_severe=True), Problem("c", "d")]).splitlines()
    assert lines[:4] == ["problem: a", "  b", "note: c", "  d"]


def test_secrets_and_the_home_folder_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "0123456789abcdef")
    found = Problem("https://user:passwort@proxy failed", "unset it")
    home = os.path.expanduser("~")
    text = json.dumps(to_json_data(facts(hub={"endpoint": "0123456789abcdef", "cache": f"{home}/cache"}), [found]))
    assert "0123456789abcdef" not in text
    assert "passwort" not in text
    assert "~/cache" in text
    assert redact_data({"a": [1, None, "hf_" + "a" * 30]}) == {"a": [1, None, "<secret>"]}


def test_this_machine(tmp_path: Path) -> None:
    known = hardware_facts(tmp_path / "missing")
    assert known["disk"]["free"] > 0
    assert known["disk"]["is_writable"]
    assert known["memory"]["available"] <= known["memory"]["limit"] <= known["memory"]["machine"]
    text = format_machine(known | {"extras": _extra_facts(), "packages": _package_facts()}, [])
    assert max(map(text_width, text.splitlines())) <= 120


def test_packages_and_extras_of_this_environment() -> None:
    packages = _package_facts()
    assert packages["torch"]["fits"]
    assert packages["deepspeed"]["range"]
    assert "pytest" not in packages
    assert {"wandb", "math", "slurm"} <= _extra_facts().keys()


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "200000 100000\n"}, 2.0),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/job\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        ({"proc/self/cgroup": "4:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"}, None),
        ({}, None),
    ],
)
def test_cpu_limit_of_control_groups(files: dict[str, str], limit: float | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = host_cpus(tmp_path)
    assert found.limit == limit
    assert found.usable == (found.allowed if limit is None else min(found.allowed, limit))
