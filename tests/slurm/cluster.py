"""Jobs of a SLURM cluster on this machine: submitting them, reading their state, waiting for them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ippo_cli

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "slurm"
SOURCE = Path(ippo_cli.__file__).parents[1]
LIMIT_S = 400.0  # of every wait


def run(*command: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """Run a command and return its output; raise if it fails."""
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def wait_until(condition: Callable[[], bool], describe: Callable[[], str]) -> None:
    """Wait until the condition holds; on timeout, fail with the description."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.2)


@dataclass(frozen=True)
class Cluster:
    """A running cluster, given by its configuration file."""

    config: Path

    def environment(self) -> dict[str, str]:
        """Environment for SLURM commands and the jobs that they submit."""
        return os.environ | {
            "SLURM_CONF": str(self.config),
            "IPPO_TRAIN": f"{sys.executable} -m ippo_cli.cli.train",
            "PYTHONPATH": str(SOURCE),
            "OMP_NUM_THREADS": "1",
        }

    def run(self, *command: str, cwd: Path | None = None) -> str:
        return run(*command, cwd=cwd, environment=self.environment())

    def submit(self, folder: Path, *arguments: str) -> int:
        """Submit a job that runs in `folder` and writes to `folder/output`; return its number."""
        folder.mkdir(exist_ok=True)
        number = self.run("sbatch", "--parsable", f"--output={folder}/output", *arguments, cwd=folder)
        return int(number)

    def fields(self, job: int | str) -> dict[str, str]:
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "show", "job", str(job))))

    def state(self, job: int | str) -> str:
        return self.fields(job)["JobState"]

    def wait_for(self, job: int | str, *states: str, output: Path) -> None:
        """Wait until a job is in one of these states."""

        def describe() -> str:
            return f"{self.fields(job)}\n{output.read_text() if output.exists() else ''}"

        wait_until(lambda: self.state(job) in states, describe)
