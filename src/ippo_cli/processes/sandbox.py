"""Runs a program in bubblewrap, or unsandboxed with `unsafe_local`, and exchanges messages. Does not import torch."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ippo_cli.processes.runner import MAX_REPLY_BYTES, decode_value, encode_value
from ippo_cli.processes.seccomp import seccomp_filter

RUNNER = Path(__file__).with_name("runner.py")
BWRAP, LOCAL = "bwrap", "unsafe_local"
START_TIMEOUT_S = 30.0
TMP_BYTES = 2**24
NOBODY = "65534"


class SandboxUnavailable(Exception):
    """The sandbox could not be started; not a failure of the program."""


class ProgramFailed(Exception):
    """The program exited, timed out or sent an invalid reply; it receives no more requests."""


class Sandbox:
    """One program in a new process, which exchanges lines of JSON until `close`.

    `call` returns the result of the program's function as built-in data, or raises an error of the same built-in type.
    """

    def __init__(self, kind: str, timeout_s: float) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ippo-") if kind == LOCAL else None
        self._buffer = b""
        self._failure: ProgramFailed | None = None
        self._process, self._deadline = _start_process(kind, self._folder), time.monotonic() + START_TIMEOUT_S
        try:
            if self._read_reply() != {"ready": True}:
                raise ProgramFailed("it did not send the ready message")
        except ProgramFailed as error:
            self.close()
            raise SandboxUnavailable(f"{kind} did not start ({error})") from None
        self._deadline = time.monotonic() + timeout_s

    @property
    def failure(self) -> ProgramFailed | None:
        """The failure after which no more requests are sent; None without one."""
        return self._failure

    def load(self, program: str, entry_point: str) -> None:
        """Execute the program's definitions."""
        self._exchange({"program": program, "entry_point": entry_point})

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function under test."""
        return self._exchange({"call": encode_value((args, kwargs))})

    def run_script(self, program: str, stdin: str) -> str:
        """Run a program as a script; returns the first 64 KiB that it writes to standard output."""
        return self._exchange({"script": program, "stdin": stdin})

    def close(self) -> None:
        """Kill the process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _exchange(self, request: dict[str, Any]) -> Any:
        if self._failure is not None:
            raise self._failure
        nonce = secrets.token_hex(8)
        try:
            self._send(json.dumps({"nonce": nonce, **request}).encode() + b"\n")
            answer = self._read_reply()
            if not isinstance(answer, dict) or answer.pop("nonce", None) != nonce:
                raise ProgramFailed("its reply has the wrong nonce")
            if set(answer) == {"error", "message"}:
                name, message = answer["error"], answer["message"]
            elif set(answer) <= {"value"}:
                return decode_value(answer.get("value"))
            else:
                raise ProgramFailed("its reply is invalid")
        except ProgramFailed as error:
            self._failure = error
            raise
        except Exception as error:  # data that cannot be decoded
            self._failure = ProgramFailed(f"its reply is invalid ({type(error).__name__})")
            raise self._failure from None
        raise _rebuild_error(name, message)

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        number = self._process.stdin.fileno()
        os.set_blocking(number, False)
        while data:
            self._wait_for(number, select.POLLOUT)
            try:
                data = data[os.write(number, data) :]
            except OSError:
                raise ProgramFailed("it exited") from None

    def _read_reply(self) -> Any:
        assert self._process.stdout is not None
        number = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            self._wait_for(number, select.POLLIN)
            chunk = os.read(number, MAX_REPLY_BYTES)
            if not chunk:
                raise ProgramFailed("it exited")
            self._buffer += chunk
            if len(self._buffer) > MAX_REPLY_BYTES:
                raise ProgramFailed(f"it wrote more than {MAX_REPLY_BYTES} bytes")
        line, _, self._buffer = self._buffer.partition(b"\n")
        if self._buffer:
            raise ProgramFailed("it sent more than one reply")
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise ProgramFailed("its reply is invalid") from None

    def _wait_for(self, number: int, event: int) -> None:
        poll = select.poll()
        poll.register(number, event)
        left = self._deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise ProgramFailed("it took too long")


def build_command(kind: str, seccomp_fd: int = -1) -> list[str]:
    """The command line of a runner; bwrap reads the seccomp filter from `seccomp_fd`."""
    python = [os.path.realpath(sys.executable), "-I", "-S", "-B"]
    if kind == LOCAL:
        return [*python, str(RUNNER), str(os.getpid())]
    found = shutil.which(BWRAP)
    if found is None:
        raise SandboxUnavailable(f"{BWRAP} is not installed")
    return [found, *_isolation_flags(), "--seccomp", str(seccomp_fd), *_mount_flags(), "--", *python, "/runner.py"]


def _isolation_flags() -> list[str]:
    return [
        "--unshare-all", "--unshare-user", "--uid", NOBODY, "--gid", NOBODY, "--hostname", "sandbox",
        "--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv", "--setenv", "PATH", "/usr/bin",
    ]  # fmt: skip


def _mount_flags() -> list[str]:
    """Mounts of the sandbox: only the interpreter and system libraries (read-only), devices and an empty /tmp."""
    flags: list[str] = []
    for folder in ("/usr/lib", "/usr/lib64", "/usr/local/lib"):
        if Path(folder).is_dir():
            flags += ["--ro-bind", folder, folder]
    for folder in ("/lib", "/lib64"):
        if Path(folder).is_symlink():
            flags += ["--symlink", os.readlink(folder), folder]
        elif Path(folder).is_dir():
            flags += ["--ro-bind", folder, folder]
    if Path("/etc/ld.so.cache").is_file():
        flags += ["--ro-bind", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for part in _interpreter_paths():
        flags += ["--ro-bind", part, part]
    for device in ("null", "zero", "urandom"):
        flags += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    return [
        *flags, "--ro-bind", str(RUNNER), "/runner.py",
        "--size", str(TMP_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/",
    ]  # fmt: skip


def _interpreter_paths() -> Sequence[str]:
    """The interpreter, its shared library's folder and its standard library; -S disables site-packages."""
    prefix = Path(sys.base_prefix).resolve()
    program = os.path.realpath(sys.executable)
    if prefix == Path("/usr"):
        return [program]
    return [program, *(str(prefix / name) for name in ("lib", "lib64") if (prefix / name).is_dir())]


def _start_process(kind: str, folder: tempfile.TemporaryDirectory[str] | None) -> subprocess.Popen[bytes]:
    """Start the runner in a new session."""
    environment, folder_name = {"PATH": "/usr/bin:/bin"}, None if folder is None else folder.name
    with contextlib.ExitStack() as pipes:
        seccomp_fd = pipes.enter_context(_seccomp_pipe()) if kind == BWRAP else -1
        try:
            return subprocess.Popen(
                build_command(kind, seccomp_fd),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd=folder_name,
                pass_fds=() if seccomp_fd < 0 else (seccomp_fd,),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise SandboxUnavailable(f"{kind} cannot be started ({error.strerror})") from error


@contextlib.contextmanager
def _seccomp_pipe() -> Iterator[int]:
    """The read end of a pipe that contains the seccomp filter."""
    rules = seccomp_filter()
    if rules is None:
        raise SandboxUnavailable("no seccomp filter for this processor architecture")
    read, write = os.pipe()
    try:
        os.write(write, rules)
        os.close(write)
        yield read
    finally:
        os.close(read)


def _rebuild_error(name: Any, message: Any) -> Exception:
    """A built-in exception of this name; `RuntimeError` for other names."""
    kind = getattr(builtins, name, None) if isinstance(name, str) else None
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(Exception):
            return kind(str(message))
    return RuntimeError(f"{name}: {message}")


def find_sandbox_problem(kind: str) -> str | None:
    """Why this kind of sandbox does not work on this machine, with a remedy; None if it works."""
    if kind == BWRAP and shutil.which(BWRAP) is None:
        return "bwrap is not installed; apt-get install bubblewrap, or dnf install bubblewrap"
    try:
        sandbox = Sandbox(kind, START_TIMEOUT_S)
    except SandboxUnavailable as error:
        return f"{error}; {_suggest_fix(_bwrap_error()) if kind == BWRAP else 'repair the interpreter'}"
    try:
        sandbox.load("def twice(x): return 2 * x", "twice")
        return None if sandbox.call(21) == 42 else "a test program returned a wrong value"
    except ProgramFailed as error:
        return f"a test program failed ({error})"
    finally:
        sandbox.close()


def _bwrap_error() -> str:
    """The error output of bwrap with the same flags."""
    try:
        with _seccomp_pipe() as rules:
            result = subprocess.run(
                build_command(BWRAP, rules),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=START_TIMEOUT_S,
                pass_fds=(rules,),
            )
    except (OSError, SandboxUnavailable, subprocess.TimeoutExpired) as error:
        return str(error)
    return result.stderr.decode(errors="replace").strip()


def _suggest_fix(complaint: str) -> str:
    message = f"bwrap reports: {complaint.splitlines()[-1] if complaint else 'nothing'}"
    if "size" in complaint and "option" in complaint:
        return f"{message}; bubblewrap 0.7 or newer is needed"
    if "uid map" in complaint or "namespace" in complaint or "not permitted" in complaint:
        return (
            f"{message}; unprivileged user namespaces are off: sysctl -w kernel.unprivileged_userns_clone=1 "
            "kernel.apparmor_restrict_unprivileged_userns=0 (those that exist), or start the container with "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined"
        )
    return message
