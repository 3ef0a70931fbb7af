"""The supervisor leaves nothing behind: neither of a server that ends, nor after a trainer that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ippo_cli.rollout.vllm import supervise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
# A server with a child in a session of its own that ignores SIGTERM, as an engine that hangs.
SERVER = """
import os, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
process = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
open(sys.argv[1], "w").write(f"{os.getpid()} {process.pid}")
time.sleep(float(sys.argv[2]))
sys.exit(7)
"""
TRAINER = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-I", sys.argv[1], str(os.getpid()), *sys.argv[2:]], start_new_session=True)
time.sleep(60)
"""


# A server with shared memory that is killed before it can remove it; its resource tracker is stopped.
SHARING_SERVER = """
import os, sys, time
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=1000)
open(sys.argv[1], "w").write(f"{os.getpid()} {memory.name}")
os.kill(resource_tracker._resource_tracker._pid, 19)
os.kill(os.getpid(), 9)
"""


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_for_processes(path: Path) -> list[int]:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if path.exists() and len(words := path.read_text().split()) == 2:
            return [int(word) for word in words]
        time.sleep(0.05)
    raise AssertionError("the server did not start")


def wait_until_ended(processes: list[int], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while any(map(is_running, processes)) and time.monotonic() < end:
        time.sleep(0.05)
    assert [process for process in processes if is_running(process)] == []


def supervise_command(path: Path, folder: Path, seconds: float) -> list[str]:
    return [str(folder), sys.executable, "-c", SERVER, str(path), str(seconds)]


def test_server_that_ends_takes_its_children_along(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    command = [sys.executable, "-I", supervise.__file__, str(os.getpid())]
    process = subprocess.run([*command, *supervise_command(tmp_path / "pids", folder, 0.1)], timeout=20)
    assert process.returncode == 7
    wait_until_ended(wait_for_processes(tmp_path / "pids"), 1)
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_trainer_that_is_killed_takes_the_server_along(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    arguments = supervise_command(tmp_path / "pids", folder, 60)
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, supervise.__file__, *arguments])
    processes = wait_for_processes(tmp_path / "pids")
    assert all(map(is_running, processes))
    trainer.send_signal(number)
    trainer.wait(5)
    wait_until_ended(processes)
    end = time.monotonic() + 5
    while folder.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not folder.exists()


def test_supervisor_ends_a_server_that_is_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-I", supervise.__file__, str(os.getpid())]
    process = subprocess.Popen([*command, *supervise_command(tmp_path / "pids", tmp_path / "none", 60)])
    processes = wait_for_processes(tmp_path / "pids")
    os.kill(processes[0], signal.SIGSTOP)
    process.terminate()
    process.wait(10)
    wait_until_ended(processes, 1)


def test_shared_memory_of_a_killed_server_is_removed(tmp_path: Path) -> None:
    command = [sys.executable, "-I", supervise.__file__, str(os.getpid()), "", sys.executable, "-c", SHARING_SERVER]
    process = subprocess.run([*command, str(tmp_path / "name")], timeout=20, stderr=subprocess.DEVNULL)
    assert process.returncode == 128 + signal.SIGKILL
    _, name = (tmp_path / "name").read_text().split()
    assert not Path("/dev/shm", name).exists()
