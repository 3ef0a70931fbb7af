"""Processes of their own that begin with everything imported: each is forked from one that has done nothing else.

A process that trains imports for six seconds, and the tests start some fifty of them. That a command starts as users
start it is shown elsewhere (test_launch.py, test_leaving.py, test_train_door.py).
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

# Without deepspeed, half a second: it looks around when it is imported, and what it finds is part of what is tested.
IMPORTED = (
    "hydra",
    "ippo_cli.cli.train",
    "ippo_cli.training.process",
    "transformers.models.llama.modeling_llama",
)
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(list(IMPORTED))


def start(
    program: Path | str, *arguments: str, environment: Mapping[str, str], printed: Path, errors: Path
) -> ForkServerProcess:
    """A script, or a module by its name, as a program: what it prints goes to these files."""
    process = _SERVER.Process(target=_run, args=(program, arguments, dict(environment), Path.cwd(), printed, errors))
    process.start()
    return process


def _run(
    program: Path | str,
    arguments: Sequence[str],
    environment: dict[str, str],
    folder: Path,
    printed: Path,
    errors: Path,
) -> None:
    for file, number in ((printed, 1), (errors, 2)):
        place = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(place, number)
        os.close(place)
    os.fsync = lambda file: None  # as in conftest.py
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [str(program), *arguments]
    if isinstance(program, Path):
        sys.path.insert(0, str(program.parent))
        runpy.run_path(str(program), run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
