"""Scripts that run as one process per rank on this machine, and what they printed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ippo_cli

SOURCE = Path(ippo_cli.__file__).parents[1]


def start_ranks(
    script: Path, *arguments: str, folder: Path, world_size: int = 2, **environment: str
) -> list[subprocess.Popen[bytes]]:
    """The processes; what each prints goes to `printed` and `errors` with its number, in the folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "TORCHELASTIC_"))}
    shared = {
        **ours,
        "PYTHONPATH": str(SOURCE),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **environment,
    }
    children = []
    for rank in map(str, range(world_size)):
        command = [sys.executable, str(script), *arguments]
        with (folder / f"printed{rank}").open("wb") as printed, (folder / f"errors{rank}").open("wb") as errors:
            own = {**shared, "RANK": rank, "LOCAL_RANK": rank}
            children.append(subprocess.Popen(command, env=own, stdout=printed, stderr=errors))
    return children


def finish(children: Sequence[subprocess.Popen[bytes]], limit_s: float) -> list[int | None]:
    """Exit codes of all; the first failure, or the time limit, ends the others."""
    deadline = time.monotonic() + limit_s
    while any(child.poll() is None for child in children):
        if any(child.poll() not in (None, 0) for child in children) or time.monotonic() > deadline:
            for child in children:
                child.kill()
        time.sleep(0.05)
    return [child.returncode for child in children]


def said(folder: Path) -> str:
    """The end of everything that ranks printed, for the message of a failure."""
    files = sorted([*folder.glob("printed*"), *folder.glob("errors*")])
    return "\n".join(f"{file.name}: {file.read_text(errors='replace')[-4000:]}" for file in files)


def found_by_ranks(script: Path, *arguments: str, folder: Path, limit_s: float = 240) -> list[dict[str, Any]]:
    """What a script that prints a JSON object last has found on each of two ranks."""
    codes = finish(start_ranks(script, *arguments, folder=folder), limit_s)
    assert codes == [0, 0], said(folder)
    return [json.loads((folder / f"printed{rank}").read_text().splitlines()[-1]) for rank in (0, 1)]
