"""Runs cases.py once on one rank and once on two, and hands their results to the tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

SOURCE = Path(__file__).parents[2] / "src"
LIMIT_S = 150


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(world_size: int, out: Path) -> list[subprocess.Popen[bytes]]:
    """The ranks; what each prints goes to `printed` and its number. Two ranks have no compiler in reach, one may."""
    port = free_port()
    children = []
    for rank in range(world_size):
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "TORCHELASTIC_"))},
            "PATH": "/nonexistent" if world_size > 1 else os.environ["PATH"],
            "TORCH_EXTENSIONS_DIR": str(out / "extensions"),
            "PYTHONPATH": str(SOURCE),
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        command = [sys.executable, str(Path(__file__).with_name("cases.py")), str(out)]
        with open(out / f"printed{rank}", "wb") as printed:
            children.append(subprocess.Popen(command, env=environment, stdout=printed, stderr=subprocess.STDOUT))
    return children


def finish(children: list[subprocess.Popen[bytes]]) -> None:
    """Waits for all; the first failure, or the time limit, ends the others."""
    deadline = time.monotonic() + LIMIT_S
    while any(child.poll() is None for child in children):
        if any(child.poll() not in (None, 0) for child in children) or time.monotonic() > deadline:
            for child in children:
                child.kill()
        time.sleep(0.05)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """World size -> folder with results.pt and what each rank printed; both worlds run at the same time."""
    folders = {size: tmp_path_factory.mktemp(f"world{size}") for size in (1, 2)}
    finish([child for size, folder in folders.items() for child in start(size, folder)])
    return folders


@pytest.fixture(params=(1, 2), ids=("1 rank", "2 ranks"))
def folder(runs: dict[int, Path], request: pytest.FixtureRequest) -> Path:
    here = runs[request.param]
    if not (here / "results.pt").exists():
        printed = "\n".join(file.read_text(errors="replace")[-4000:] for file in sorted(here.glob("printed*")))
        pytest.fail(f"the ranks did not finish:\n{printed}", pytrace=False)
    return here


@pytest.fixture
def results(folder: Path) -> dict[str, Any]:
    """Case name -> what rank 0 returned for it; every test that asks for it runs for one rank and for two."""
    return torch.load(folder / "results.pt", weights_only=False)
