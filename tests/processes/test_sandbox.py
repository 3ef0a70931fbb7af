"""Isolation and limits of the sandbox."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from programs_of_others import ESCAPES, HELPERS, NOT_WITHOUT_WALLS

from ippo_cli.processes import sandbox
from ippo_cli.processes.runner import decode_value, encode_value
from ippo_cli.processes.sandbox import BWRAP, ProgramFailed, Sandbox, SandboxUnavailable, find_sandbox_problem
from ippo_cli.processes.seccomp import seccomp_filter


@dataclass(frozen=True)
class Outside:
    """Files, a port and a process outside the sandbox, which programs try to access."""

    secret: Path
    marker: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def arguments(self) -> tuple[str, str, int, int]:
        return str(self.secret), str(self.marker), self.port, self.process.pid

    def untouched(self) -> bool:
        return self.secret.read_text() == "known" and not self.marker.exists() and self.process.poll() is None


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    monkeypatch.setenv("IPPO_SECRET", "known")
    secret = tmp_path / "secret"
    secret.write_text("known")
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    with secret.open() as file, socket.create_server(("127.0.0.1", 0)) as server:
        number = fcntl.fcntl(file, fcntl.F_DUPFD, 40)  # inheritable
        yield Outside(secret, tmp_path / "marker", server.getsockname()[1], process)
    os.close(number)
    process.kill()
    process.wait()


@pytest.mark.parametrize("way", ESCAPES)
def test_sandbox_blocks_escape(way: str, bwrap: str, outside: Outside) -> None:
    program = Sandbox(bwrap, 5.0)
    got: object = None
    try:
        program.load(_escape(way), "f")
        got = program.call(*outside.arguments)
    except (OSError, RuntimeError, ProgramFailed, MemoryError, ValueError):  # the escape is blocked
        pass
    finally:
        program.close()
    assert got in (None, False)
    assert outside.untouched()


@pytest.mark.parametrize("way", sorted(ESCAPES.keys() - NOT_WITHOUT_WALLS))
def test_escape_works_without_sandbox(way: str, outside: Outside, tmp_path: Path) -> None:
    """Checks the escapes themselves: without a sandbox each of them works."""
    code = f"{_escape(way)}\nprint(f(*{outside.arguments!r}))"
    tried = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, close_fds=False, timeout=60)
    assert tried.stdout.split()[-1:] == [b"True"], tried.stderr.decode()


def _escape(way: str) -> str:
    return f"{HELPERS}\ndef f(secret, marker, port, pid):\n    {ESCAPES[way]}\n"


def test_time_and_output_limits(kind: str) -> None:
    for body, why in (("while True: pass", "too long"), ("return 'x' * 2 ** 17", "more than 65536 bytes")):
        program = Sandbox(kind, 0.5)
        begun = time.monotonic()
        program.load(f"def f():\n    {body}", "f")
        with pytest.raises(ProgramFailed, match=why):
            program.call()
        with pytest.raises(ProgramFailed, match=why):
            program.call()  # no second request is sent
        program.close()
        assert time.monotonic() - begun < 5


def test_builtin_values_round_trip(kind: str) -> None:
    program = Sandbox(kind, 5.0)
    program.load("import collections\ndef f(x): return collections.Counter('aab') if x == 'count' else x", "f")
    value = [
        1,
        -2.5,
        10**30,
        True,
        None,
        "é\ud800",
        (1, (2,)),
        {1, 2},
        frozenset({"a"}),
        {1: "a", (2,): [3]},
        1j,
        b"\xff",
    ]
    found = program.call(value)
    assert (found, [type(part) for part in found]) == (value, [type(part) for part in value])
    assert program.call("count") == {"a": 2, "b": 1}
    assert program.call(float("inf")) == float("inf")
    with pytest.raises(TypeError, match="is not plain data"):
        encode_value(object())
    program.close()


@pytest.mark.parametrize("odd", [{"a": [], "b": []}, {"code": []}, {"set": [[]]}, {"dict": [1]}])
def test_decode_rejects_invalid_data(odd: object) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        decode_value(odd)


def test_errors_are_rebuilt_as_builtin_types(kind: str) -> None:
    program = Sandbox(kind, 5.0)
    own = "class Own(Exception): pass\nclass Negative(ValueError): pass\n"
    program.load(f"{own}def f(x):\n    raise [ValueError, Own, SystemExit, Negative][x](3)", "f")
    for number, error in enumerate((ValueError, RuntimeError, RuntimeError, ValueError)):
        with pytest.raises(error, match="3"):
            program.call(number)
    program.close()


def test_missing_sandbox_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (
        find_sandbox_problem(BWRAP) == "bwrap is not installed; apt-get install bubblewrap, or dnf install bubblewrap"
    )
    with pytest.raises(SandboxUnavailable):
        Sandbox(BWRAP, 1.0)
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2; exit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    problem = find_sandbox_problem(BWRAP)
    assert problem is not None
    assert "did not start" in problem
    assert "Permission denied; unprivileged user namespaces are off: sysctl" in problem


def test_seccomp_filter_by_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seccomp_filter("riscv64") is None
    for machine in ("x86_64", "aarch64"):
        steps = list(struct.iter_unpack("<HBBI", seccomp_filter(machine) or b""))
        assert steps[-1] == (6, 0, 0, 0x7FFF0000)
        for place, (code, yes, no, _) in enumerate(steps):  # every jump stays inside the program
            assert code & 7 != 5 or place + 1 + max(yes, no) < len(steps)
    monkeypatch.setattr(sandbox, "seccomp_filter", lambda: None)
    with pytest.raises(SandboxUnavailable, match="this processor architecture"):
        Sandbox(BWRAP, 1.0)


def test_program_ends_with_killed_judge(tmp_path: Path) -> None:
    """Bubblewrap exits with its parent; the runner without a sandbox must watch its parent itself."""
    code = """
        import sys
        from ippo_cli.processes.sandbox import LOCAL, Sandbox
        sandbox = Sandbox(LOCAL, 3600.0)
        sandbox.load("import time\\ndef f(it):\\n    open(it, 'w').close(); time.sleep(3600)", "f")
        print(sandbox._process.pid, flush=True)
        sandbox.call(sys.argv[1])
    """
    begun = tmp_path / "begun"
    judge = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(begun)], stdout=subprocess.PIPE, text=True
    )
    assert judge.stdout is not None
    program = Path(f"/proc/{int(judge.stdout.readline())}/stat")
    end = time.monotonic() + 30
    while not begun.exists() and time.monotonic() < end:
        time.sleep(0.05)
    judge.kill()
    judge.wait()
    while program.exists() and program.read_text().rsplit(")", 1)[1].split()[0] != "Z" and time.monotonic() < end:
        time.sleep(0.1)
    assert time.monotonic() < end
