"""Python packages against the ranges of this program, torch, DeepSpeed, compilers, extras and the model hub."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from ippo_cli.diagnosis.machine.hardware import run_quietly
from ippo_cli.diagnosis.machine.problem import Facts, Problem

PACKAGE = "ippo-cli"
HUB_URL = "https://huggingface.co"
HUB_TIMEOUT_S = 5
COMPILERS = ("gcc", "g++", "nvcc", "ninja")
SLURM_COMMANDS = ("sbatch", "srun", "squeue", "scontrol")
SLURM_VARIABLES = ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_JOB_NUM_NODES", "SLURM_CPUS_PER_TASK", "SLURM_JOB_PARTITION")
CHECKED_EXTRAS_EXCEPT = frozenset({"test", "dev"})
EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")


def software_facts(*, network: bool) -> dict[str, Facts]:
    """Facts by section. `network`: whether to ask the model hub for an answer."""
    return {
        "python": {"version": platform.python_version(), "system": platform.platform(), "package": _own_version()},
        "packages": _package_facts(),
        "extras": _extra_facts(),
        "torch": _torch_facts(),
        "deepspeed": _deepspeed_facts(),
        "compilers": {name: _version_line(run_quietly(name, "--version")) for name in COMPILERS},
        "slurm": {
            "commands": [name for name in SLURM_COMMANDS if shutil.which(name)],
            "job": {name: os.environ[name] for name in SLURM_VARIABLES if name in os.environ},
        },
        "hub": _hub_facts(network=network),
    }


def _own_version() -> str:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "not installed"


def _version_line(text: str | None) -> str | None:
    """The line with the version: of nvcc the one with `release`, else the first."""
    lines = text.splitlines() if text else []
    return next((line for line in lines if "release" in line), lines[0] if lines else None)


def _requirements() -> list[tuple[str, str | None, Any]]:
    """Name, extra and requirement of every dependency that applies to this system."""
    from packaging.requirements import InvalidRequirement, Requirement

    found = []
    for text in requires(PACKAGE) or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        extra = match[1] if requirement.marker is not None and (match := EXTRA.search(text)) else None
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra or ""}):
            found.append((requirement.name, extra, requirement))
    return found


def _package_facts() -> Facts:
    """Installed version, range and whether it fits, of each required package."""
    return {name: _package_entry(requirement) for name, extra, requirement in _requirements() if extra is None}


def _package_entry(requirement: Any) -> dict[str, Any]:
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        installed = None
    fits = installed is not None and requirement.specifier.contains(installed, prereleases=True)
    return {"installed": installed, "range": str(requirement.specifier), "fits": fits}


def _extra_facts() -> Facts:
    """Packages of each extra that are missing or outside their range; empty if the extra is installed."""
    extras: dict[str, list[str]] = {}
    for name, extra, requirement in _requirements():
        if extra is None or extra in CHECKED_EXTRAS_EXCEPT or name == PACKAGE:
            continue
        missing = extras.setdefault(extra, [])
        if not _package_entry(requirement)["fits"]:
            missing.append(str(requirement).partition(";")[0].strip())
    return extras


def _torch_facts() -> Facts:
    try:
        import torch
    except Exception as error:  # a broken installation may raise anything
        return {"error": f"{type(error).__name__}: {error}"}
    is_available = torch.cuda.is_available()
    devices = range(torch.cuda.device_count()) if is_available else ()
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "cuda_available": is_available,
        "devices": [
            {"name": (one := torch.cuda.get_device_properties(number)).name, "memory": one.total_memory}
            for number in devices
        ],
        "bf16": bool(is_available and torch.cuda.is_bf16_supported()),
        "threads": torch.get_num_threads(),
        "nccl": is_available and torch.distributed.is_nccl_available(),
        "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
    }


def _deepspeed_facts() -> Facts:
    from ippo_cli.engine.deepspeed_ops import list_deepspeed_ops

    try:
        return {"version": version("deepspeed"), "ops": list_deepspeed_ops()}
    except Exception as error:  # importing DeepSpeed probes compilers and devices
        return {"error": f"{type(error).__name__}: {error}"}


def _hub_facts(*, network: bool) -> Facts:
    home = os.environ.get("HF_HOME", str(Path.home() / ".cache" / "huggingface"))
    return {
        "cache": home,
        "offline": os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON"),
        "endpoint": os.environ.get("HF_ENDPOINT", HUB_URL),
        "answer": _ask_hub(os.environ.get("HF_ENDPOINT", HUB_URL)) if network else "not tested",
    }


def _ask_hub(endpoint: str) -> str:
    """The status of the hub's answer, or the error."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(endpoint, method="HEAD"), timeout=HUB_TIMEOUT_S) as answer:
            return str(answer.status)
    except HTTPError as error:
        return str(error.code)
    except (OSError, ValueError) as error:
        return f"error: {error}"


def software_problems(facts: dict[str, Facts]) -> Iterator[Problem]:
    """Packages that are missing or outside their range, and libraries that do not load or see no GPU."""
    wrong = [
        f"{name} {entry['installed'] or 'is not installed'} ({entry['range'] or 'any version'} is needed)"
        for name, entry in facts["packages"].items()
        if not entry["fits"]
    ]
    if wrong:
        yield Problem("; ".join(wrong), "pip install --upgrade ippo-cli", is_severe=True)
    yield from _library_problems(facts)
    if facts["hub"]["answer"].startswith("error"):
        yield Problem(
            f"{facts['hub']['endpoint']} cannot be reached ({facts['hub']['answer'].removeprefix('error: ')})",
            "use folders for actor.model and task.train, or set HF_ENDPOINT or a proxy",
        )


def _library_problems(facts: dict[str, Facts]) -> Iterator[Problem]:
    torch, deepspeed, gpu = facts["torch"], facts["deepspeed"], facts["gpu"]
    for name, section in (("torch", torch), ("deepspeed", deepspeed)):
        if "error" in section:
            yield Problem(f"{name} cannot be imported ({section['error']})", f"reinstall {name}", is_severe=True)
    if "error" in torch:
        return
    if gpu["devices"] and torch["cuda"] is None:
        yield Problem(
            f"this machine has a GPU and torch {torch['version']} has no CUDA support",
            "install torch for CUDA (https://pytorch.org/get-started/locally)",
        )
    elif gpu["devices"] and not torch["cuda_available"]:
        hidden = gpu["CUDA_VISIBLE_DEVICES"] is not None
        yield Problem(
            f"torch {torch['version']} (CUDA {torch['cuda']}) sees no GPU",
            f"CUDA_VISIBLE_DEVICES={gpu['CUDA_VISIBLE_DEVICES']} hides it"
            if hidden
            else "update the driver, or install torch for its CUDA version",
        )
    if not torch["gloo"] and not torch["nccl"]:
        yield Problem("torch has neither gloo nor NCCL", "launch.processes=1 works; install another build for more")
