"""Starts programs in processes of their own, and reports how they end."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ippo_cli.config.errors import ConfigError
from ippo_cli.engine import progress
from ippo_cli.tasks.programs import spawner as spawner_program
from ippo_cli.tasks.programs.endpoint import Endpoint
from ippo_cli.tasks.programs.spawner import receive_message, send_message
from ippo_cli.types import Example

START_TIMEOUT_S = 120.0
"""Time limit of starting the process and importing the user's function."""
MAX_OUTPUT_BYTES = 16 << 20
"""What a program may print."""
TAIL_BYTES = 2000
LOOPBACK = "127.0.0.1"
EXAMPLE_FILE, RESULT_FILE = "example.json", "result.json"
READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program ended: its return value, or why it failed."""

    value: Any = None
    failure: str = ""


class Program:
    """A running program."""

    def __init__(self, process: int, report: int, output: BinaryIO, folder: Path | None) -> None:
        self.process, self.report, self._output, self._folder = process, report, output, folder
        self._received = bytearray()
        self._lock = threading.Lock()
        self.is_running = True

    def read_report(self) -> ProgramEnd | None:
        """How the program ended; None while it runs."""
        chunk = os.read(self.report, READ_BYTES)
        self._received += chunk
        if len(self._received) > MAX_OUTPUT_BYTES:
            self.is_running = False
            return ProgramEnd(failure=f"its result has more than {MAX_OUTPUT_BYTES} bytes")
        if chunk and not chunk.endswith(b"\n"):
            return None
        lines = [line for line in map(_parse_line, self._received.splitlines()) if line]
        exits = [line["exit"] for line in lines if "exit" in line]
        if chunk and not exits:
            return None
        self.is_running = False
        for line in lines:
            if "error" in line:
                return ProgramEnd(failure=line["error"])
            if "value" in line:
                return ProgramEnd(value=line["value"])
        code = exits[0] if exits else None
        if code == 0 and self._folder is not None:
            return _read_result(self._folder / RESULT_FILE)
        return ProgramEnd(failure=f"it ended with {_describe_exit(code)}{self._describe_output()}")

    def output_bytes(self) -> int:
        """How much the program has printed; 0 after its end."""
        with self._lock:
            return 0 if self._output.closed else os.fstat(self._output.fileno()).st_size

    def close(self) -> None:
        os.close(self.report)
        with self._lock:
            self._output.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _describe_output(self) -> str:
        size = self.output_bytes()
        if not size:
            return ""
        text = os.pread(self._output.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")
        return f"; the end of its output: {text.strip()}"


def _parse_line(line: bytes | bytearray) -> dict[str, Any]:
    """A message of the report; empty for an incomplete line."""
    with suppress(ValueError, RecursionError):
        if isinstance(message := json.loads(line), dict):
            return message
    return {}


def _read_result(file: Path) -> ProgramEnd:
    try:
        text = file.read_text() if file.exists() else ""
        return ProgramEnd(value=json.loads(text) if text.strip() else None)
    except (OSError, ValueError, RecursionError) as error:
        return ProgramEnd(failure=f"the file of IPPO_RESULT is not JSON ({error})")


class ProgramSpawner:
    """Starts programs by a process that has imported the user's function. Thread-safe.

    `command`: a command line in place of a function. It finds the example in the JSON file `IPPO_EXAMPLE`, and may
    write what a function returns to `IPPO_RESULT`, as JSON.
    """

    def __init__(self, *, function: str | None, command: str | None) -> None:
        self._function = function
        self._command = None if command is None else shlex.split(command)
        spawner_program.raise_file_limit()
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, example: Example, endpoint: Endpoint) -> Program:
        """Start a program for an episode. Raises `ConfigError` if the user's function cannot be imported."""
        environment = {
            "OPENAI_BASE_URL": endpoint.base_url,
            "OPENAI_API_KEY": endpoint.api_key,
            "IPPO_AGENTS": " ".join(endpoint.agents),
            "IPPO_SEED": str(endpoint.seed),
        }
        for name in ("no_proxy", "NO_PROXY"):  # clients would send requests to a configured proxy
            environment[name] = ",".join(filter(None, [os.environ.get(name), LOOPBACK]))
        with ExitStack() as on_error:
            folder = None
            if self._command is not None:
                folder = Path(tempfile.mkdtemp(prefix="ippo-program-"))
                on_error.callback(shutil.rmtree, folder, ignore_errors=True)
                (folder / EXAMPLE_FILE).write_text(json.dumps(example, default=str))
                environment |= {"IPPO_EXAMPLE": str(folder / EXAMPLE_FILE), "IPPO_RESULT": str(folder / RESULT_FILE)}
            message = {
                "environment": environment,
                "command": self._command,
                "example": dict(example),
                "seed": endpoint.seed,
                "endpoint": {name: getattr(endpoint, name) for name in ("base_url", "api_key", "agents", "seed")},
            }
            output = on_error.enter_context(tempfile.TemporaryFile())
            report, write_end = os.pipe()
            on_error.callback(os.close, report)
            try:
                process = self._send_start(message, [write_end, output.fileno()])
            finally:
                os.close(write_end)
            on_error.pop_all()
        return Program(process, report, output, folder)

    def kill(self, program: Program) -> None:
        """End a program and the processes that it has started."""
        with self._lock:
            if self._connection is not None and program.is_running:
                with suppress(OSError):
                    send_message(self._connection, {"kill": program.process})

    def close(self) -> None:
        """End all programs."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
            self._process.kill()
            self._process.wait()
            self._process = None

    def _send_start(self, message: Mapping[str, Any], fds: list[int]) -> int:
        with self._lock:
            for _ in range(2):  # the process may have been killed since the last start
                if self._connection is None:
                    self._connect()
                assert self._connection is not None
                try:
                    send_message(self._connection, dict(message), fds)
                    received = receive_message(self._connection)
                except OSError:
                    received = None
                if received is not None and "error" in received[0]:
                    raise RuntimeError(received[0]["error"])
                if received is not None:
                    return received[0]["process"]
                self._close()
            raise RuntimeError("the process that starts programs has ended twice")

    def _connect(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(START_TIMEOUT_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(spawner_program.__file__), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # not reached by signals to the run's group
                env={**os.environ, "PYTHONHASHSEED": "0"},  # sets have the same order in a resumed run
            )
        self._connection = ours
        setting = {"function": self._function, "key": "task.program", "path": list(sys.path)}
        try:
            with progress.grant_time(START_TIMEOUT_S):
                send_message(ours, setting)
                received = receive_message(ours)
        except OSError:
            received = None
        if received is None or "error" in received[0]:
            reason = "its process ended while importing it" if received is None else received[0]["error"]
            self._close()
            raise ConfigError(f"task.program={self._function}", f"cannot be imported ({reason})", "fix the error there")


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "the process that starts programs"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
