"""Runs scripts as one process per rank on this machine, and reads their output."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import forked

import ippo_cli

SOURCE = Path(ippo_cli.__file__).parents[1]


def start_ranks(
    program: Path | str, *arguments: str, folder: Path, world_size: int = 2, **environment: str
) -> list[ForkServerProcess]:
    """Start a script, or a module by its name, as ranks; each writes to `printed` and `errors` with its number."""
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
    return [
        forked.start(
            program,
            *arguments,
            environment=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            printed=folder / f"printed{rank}",
            errors=folder / f"errors{rank}",
        )
        for rank in range(world_size)
    ]


def finish(children: Sequence[ForkServerProcess], limit_s: float) -> list[int | None]:
    """Exit codes of all; the first failure, or the time limit, ends the others."""
    deadline = time.monotonic() + limit_s
    try:
        while any(child.is_alive() for child in children):
            if any(child.exitcode not in (None, 0) for child in children) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
    finally:
        for child in children:
            child.kill()
            child.join()
    return [child.exitcode for child in children]


def read_output(folder: Path) -> str:
    """The end of the output of all ranks, for failure messages."""
    files = sorted(file for kind in ("printed*", "errors*") for file in folder.glob(kind) if file.is_file())
    return "\n".join(f"{file.name}: {file.read_text(errors='replace')[-4000:]}" for file in files)


def found_by_ranks(script: Path, *arguments: str, folder: Path, limit_s: float = 240) -> list[dict[str, Any]]:
    """The JSON object that a script prints last, from each of two ranks."""
    codes = finish(start_ranks(script, *arguments, folder=folder), limit_s)
    assert codes == [0, 0], read_output(folder)
    return [json.loads((folder / f"printed{rank}").read_text().splitlines()[-1]) for rank in (0, 1)]
