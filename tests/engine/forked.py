"""Processes forked from a server that has imported everything and run nothing else.

A training process imports for six seconds, and the tests start some hundred of them. Starting commands like users do is
tested elsewhere (test_launch.py, test_leaving.py, test_wheel.py).
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess

# Without deepspeed, half a second: it inspects its environment on import, which the tests check.
IMPORTED = (
    "hydra",
    "ippo_cli.cli.train",
    "ippo_cli.training.process",
    "transformers.models.llama.modeling_llama",
    "mlflow",  # DeepSpeed imports it where it is installed, which takes longer than DeepSpeed
)
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(list(IMPORTED))


def start(
    program: Path | str,
    *arguments: str,
    environment: Mapping[str, str],
    printed: Path,
    errors: Path,
    folder: Path | None = None,
) -> ForkServerProcess:
    """Run a script, or a module by its name, as a program in a folder (this one) with its output in these files."""
    folder = folder or Path.cwd()
    process = _SERVER.Process(target=_run, args=(program, arguments, dict(environment), folder, printed, errors))
    process.start()
    return process


def run(
    program: str, *arguments: str, folder: Path, environment: Mapping[str, str], limit_s: float = 300
) -> CompletedProcess[str]:
    """Run a module as a program in a folder to its end; like `subprocess.run` with captured output."""
    with tempfile.TemporaryDirectory() as place:
        printed, errors = Path(place, "printed"), Path(place, "errors")
        process = start(program, *arguments, environment=environment, printed=printed, errors=errors, folder=folder)
        process.join(limit_s)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"{program} {' '.join(arguments)} did not end")
        return CompletedProcess(arguments, process.exitcode, printed.read_text(), errors.read_text())


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
        sys.modules.pop(program, None)  # runpy warns of a module that is imported already
        runpy.run_module(program, run_name="__main__", alter_sys=True)
