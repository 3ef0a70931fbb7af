"""Programs end with all processes that they have started, in whatever way they, or the run, end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ippo_cli.tasks.programs.endpoint import Endpoint
from ippo_cli.tasks.programs.processes import Program, ProgramEnd, ProgramSpawner

SOURCE = """
import os, subprocess, sys, time

STAY = [sys.executable, "-c", "import time; time.sleep(600)", sys.argv[-1]]


def play(example, endpoint):
    subprocess.Popen([*STAY[:3], example["mark"]], start_new_session=True)
    if os.fork() == 0:  # a daemon
        os.setsid()
        subprocess.Popen([*STAY[:3], example["mark"]], start_new_session=True)
        os._exit(0)
    os.wait()
    if example["then"] == "stays":
        time.sleep(600)
    if example["then"] == "is killed":
        os.kill(os.getpid(), 9)
    return 1.0
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.fixture
def spawner(tmp_path: Path) -> Iterator[ProgramSpawner]:
    (tmp_path / "play.py").write_text(SOURCE)
    made = ProgramSpawner(function=f"{tmp_path / 'play.py'}:play", command=None)
    yield made
    made.close()


def start(spawner: ProgramSpawner, mark: str, then: str) -> Program:
    endpoint = Endpoint(base_url="http://127.0.0.1:9/v1", api_key="none", agents=["solo"], seed=0)
    return spawner.start({"mark": mark, "then": then}, endpoint)


def wait_for_end(program: Program) -> ProgramEnd:
    while (end := program.read_report()) is None:
        pass
    return end


def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    until = time.monotonic() + limit_s
    while not (found := condition()) and time.monotonic() < until:
        time.sleep(0.02)
    return found


def count(mark: str) -> int:
    """How many processes have this argument."""
    return sum(
        mark in process.info["cmdline"] for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"]
    )


@pytest.mark.parametrize(("then", "failure"), [("ends", ""), ("is killed", "signal 9")])
def test_children_in_sessions_of_their_own_end_with_their_program(
    spawner: ProgramSpawner, tmp_path: Path, then: str, failure: str
) -> None:
    other = start(spawner, f"{tmp_path}/other", "stays")
    assert wait_for(lambda: count(f"{tmp_path}/other") == 2)
    end = wait_for_end(start(spawner, f"{tmp_path}/mark", then))
    assert failure in end.failure
    assert (end.value == 1.0) == (not failure)
    assert (count(f"{tmp_path}/mark"), count(f"{tmp_path}/other")) == (0, 2), "the other program runs"
    spawner.kill(other)
    assert wait_for(lambda: count(f"{tmp_path}/other") == 0)


@pytest.mark.parametrize("way", ["close", "kill the spawner", "kill the guard"])
def test_children_end_with_the_process_that_starts_programs(spawner: ProgramSpawner, tmp_path: Path, way: str) -> None:
    program = start(spawner, f"{tmp_path}/mark", "stays")
    assert wait_for(lambda: count(f"{tmp_path}/mark") == 2)
    if way == "close":
        spawner.close()
    else:
        guard = psutil.Process(program.process)
        (guard if way == "kill the guard" else guard.parent()).kill()  # type: ignore[union-attr]
        if way == "kill the guard":
            assert "signal 9" in wait_for_end(program).failure
            spawner.close()
    assert wait_for(lambda: count(f"{tmp_path}/mark") == 0)


RUN = """
import sys, time
from ippo_cli.tasks.programs.endpoint import Endpoint
from ippo_cli.tasks.programs.processes import ProgramSpawner

spawner = ProgramSpawner(function=sys.argv[1], command=None)
endpoint = Endpoint(base_url="http://127.0.0.1:9/v1", api_key="none", agents=["solo"], seed=0)
programs = [spawner.start({"mark": sys.argv[2], "then": "stays"}, endpoint) for _ in range(3)]
time.sleep(600)
"""


def test_children_end_with_a_killed_run(tmp_path: Path) -> None:
    (tmp_path / "play.py").write_text(SOURCE)
    mark = f"{tmp_path}/mark"
    run = subprocess.Popen([sys.executable, "-c", RUN, f"{tmp_path / 'play.py'}:play", mark])
    try:
        assert wait_for(lambda: count(mark) == 7, 30.0)
    finally:
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    assert wait_for(lambda: count(mark) == 0)
