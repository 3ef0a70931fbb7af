"""Start `guess_server.py` in a process, with the package `openenv` where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

SERVER = Path(__file__).with_name("guess_server.py")
PYTHON = os.environ.get("OPENENV_PYTHON", sys.executable)
"""The interpreter of an environment with `openenv`, which has too many dependencies for the tests' environment."""


class GuessServer:
    """A running server; `kill` and `start` keep its port."""

    def __init__(self, *arguments: str) -> None:
        self.arguments, self.port = arguments, 0
        self.start()

    def start(self) -> None:
        python = PYTHON if "--package" in self.arguments else sys.executable
        self.process = subprocess.Popen(
            [python, str(SERVER), "--port", str(self.port), *self.arguments], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def run_server(*arguments: str) -> Iterator[GuessServer]:
    server = GuessServer(*arguments)
    try:
        yield server
    finally:
        server.kill()


@cache
def has_package() -> bool:
    return subprocess.run([PYTHON, "-c", "import openenv.core"], capture_output=True).returncode == 0


def need_package() -> None:
    if not has_package():
        pytest.skip("needs the package openenv (OPENENV_PYTHON=its interpreter)")
