"""The process pool: results, timeouts, crashes and interruption."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.processes.pool import MAX_FORWARDED_BYTES, CallFailed, ProcessPool

Make = Callable[..., ProcessPool]
FILE = """
import multiprocessing, os, random, subprocess, sys, time

def act(what, number):
    if what == "sleep":
        time.sleep(3600)
    if what == "spin":
        while True:
            pass
    if what == "leave":
        os._exit(0)
    if what == "exit":
        sys.exit(0)
    if what == "raise":
        raise ValueError("no")
    if what == "flood":
        for _ in range(300):
            print("x" * 2**20)
    if what == "flood fd 1":
        for _ in range(50):
            os.write(1, b"y" * 2**20)
    if what == "child":
        return subprocess.Popen(["sleep", "3600"], start_new_session=True).pid
    if what == "hang with a child":
        child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        open(number, "w").write(str(child.pid))
        time.sleep(3600)
    if what == "pool":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return sum(pool.map(abs, [-1, -number]))
    if what == "draw":
        return random.random()
    return number
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("acts") / "acts.py"
    path.write_text(FILE)
    return path


@pytest.fixture
def make(file: Path) -> Iterator[Make]:
    made: list[ProcessPool] = []

    def processes(size: int = 1, timeout_s: float | None = 20.0, name: str = "act") -> ProcessPool:
        made.append(ProcessPool(f"{file}:{name}", "reward.function", size, timeout_s))
        return made[-1]

    yield processes
    for one in made:
        one.close()


def calls(*given: Any) -> list[Any]:
    return [(one if isinstance(one, tuple) else (one, 1), {}) for one in given]


def ends(pid: int) -> bool:
    """Whether the process ends within 20 s; members of a killed group end shortly after their leader."""
    end = time.monotonic() + 20
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(pid)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_results_are_in_call_order(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    processes = make(2)
    found = processes.call(
        calls(("", 1), "leave", ("", 3), "exit", "raise", "flood", "flood fd 1", ("pool", 4), ("", 9))
    )
    assert [one for one in found if not isinstance(one, CallFailed)] == [1, 3, 1, 1, 5, 9]
    assert "the call ended its process (exit code 0)" in str(found[1])
    assert "SystemExit: 0" in str(found[3])
    assert "ValueError: no" in str(found[4])
    assert "acts.py" in str(found[4])
    assert 0 < len(capfd.readouterr().err) <= MAX_FORWARDED_BYTES, "only the first part of the output is forwarded"


def test_timeout_kills_all_processes_of_the_call(make: Make, tmp_path: Path) -> None:
    processes = make(2, timeout_s=1.0)
    processes.call(calls("", ""))  # starts the processes before timing
    begun = time.monotonic()
    found = processes.call(calls("sleep", "spin", ("hang with a child", str(tmp_path / "pid")), ("", 5)))
    assert time.monotonic() - begun < 15
    assert [str(one) for one in found[:3]] == ["the call took longer than 1 s"] * 3
    assert found[3] == 5
    assert ends(int((tmp_path / "pid").read_text()))


def test_equal_calls_use_equal_random_numbers(make: Make) -> None:
    processes = make()
    first = processes.call(calls(("draw", 1), ("draw", 2)))
    assert first[0] != first[1]
    processes.call(calls("leave"))
    assert processes.call(calls(("draw", 2), ("draw", 1))) == first[::-1]


def test_interrupted_call_leaves_no_late_answer(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = make()
    assert processes.call(calls(("", 1))) == [1]
    with monkeypatch.context() as patched:
        patched.setattr(processes, "wait_for_result", lambda results: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            processes.call(calls(("", 2)))
    assert processes.call(calls(("", 3))) == [3]


def test_missing_function_raises_config_error(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"^reward\.function=.*:nothing cannot be imported in a child process"):
        make(name="nothing").call(calls(""))


def test_processes_end_on_close_and_with_parent(make: Make, file: Path) -> None:
    processes = make()
    [child] = processes.call(calls("child"))
    assert alive(child)
    processes.close()
    assert ends(child)
    code = f"""
        import os
        from ippo_cli.processes.pool import ProcessPool
        processes = ProcessPool({f"{file}:act"!r}, "reward.function", 1, None)
        print(processes.call([(("child", 1), {{}})])[0], flush=True)
        os._exit(1)
    """
    output = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    child = int(output.stdout)
    assert ends(child)


def test_failed_start_closes_pipes(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("too many processes")

    processes = make(2)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", refuse)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match="too many"):
            processes.call(calls(""))
    end = time.monotonic() + 10  # the thread that forwards output ends by itself
    while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < end:
        time.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert processes.call(calls(("", 4))) == [4]
