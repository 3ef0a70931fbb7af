"""A vLLM server that a run starts and ends; it listens at a socket in a private folder, so that no port is needed."""

from __future__ import annotations

import atexit
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ippo_cli
from ippo_cli.config.errors import EngineError, convert_storage_errors
from ippo_cli.rollout.completion_client import UNIX, CompletionClient, ServerFailure
from ippo_cli.rollout.vllm import supervise
from ippo_cli.rollout.vllm.server_log import ServerLog

POLL_S = 0.25
CLOSE_S = 15.0  # above the supervisor's grace
DISTRIBUTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
"""Variables of the trainer's process group, which the server would take for its own."""


class ServerProcess:
    """A server and its supervisor, in a session of their own; nothing of it is left when this process ends."""

    def __init__(
        self,
        model_folder: Path,
        arguments: Mapping[str, Any],
        *,
        name: str,
        log_path: Path,
        start_timeout_s: float,
        environment: Mapping[str, str] | None = None,
        remove_at_end: Sequence[Path] = (),
    ) -> None:
        """`arguments`: of `EngineArgs`, less the model. `remove_at_end`: folders that are removed with the server."""
        self._model_folder, self._arguments = model_folder, dict(arguments)
        self._name, self.log, self._start_timeout_s = name, ServerLog(log_path), start_timeout_s
        self._environment, self._remove_at_end = dict(environment or {}), list(remove_at_end)
        self.model_name = f"ippo-{secrets.token_hex(4)}"
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._folder: Path | None = None

    @property
    def address(self) -> str:
        assert self._folder is not None
        return f"{UNIX}{self._folder / 'socket'}"

    @property
    def pid(self) -> int:
        """The supervisor's process, which leads the server's session."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server, and wait until it answers. Raises `EngineError`."""
        self._folder = Path(tempfile.mkdtemp(prefix="ippo-server-"))  # readable by this user alone
        folders = ":".join(map(str, [self._folder, *self._remove_at_end]))
        command = [sys.executable, "-I", supervise.__file__, str(os.getpid()), folders]
        command += [sys.executable, "-m", "ippo_cli.rollout.vllm.serve", str(self._model_folder)]
        command += ["--uds", str(self._folder / "socket"), "--served-model-name", self.model_name]
        command += command_line(self._arguments)
        atexit.register(self.close)
        try:
            with convert_storage_errors(str(self.log.path)), self.log.open() as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._server_environment(),
                    start_new_session=True,
                )
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def failure(self, reason: str) -> EngineError:
        """The error for a failure, with lines of the log; ends the server."""
        was_running = self.is_running()
        if was_running and self._process is not None:
            # A server with a broken connection is about to end: its own last words are the reason.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
        code = None if self._process is None else self._process.poll()
        error = self.log.make_error(self._name, reason, code)
        self.close()
        return error

    def close(self) -> None:
        """End the server and all that it started."""
        process = self._process
        if process is None or os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(CLOSE_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, 9)  # after a supervisor that was killed itself
        process.wait()

    def _wait_until_ready(self) -> None:
        client = CompletionClient(self.address, concurrency=1, silence_limit_s=self._start_timeout_s)
        end = time.monotonic() + self._start_timeout_s
        try:
            while True:
                if not self.is_running():
                    raise self.failure("the server did not start")
                with suppress(ServerFailure):
                    client.call("GET", "/health", timeout_s=2.0)
                    return
                if time.monotonic() > end:
                    limit = f"rollout.vllm.start_timeout_s={self._start_timeout_s:g}"
                    raise self.failure(f"the server did not start within {limit} seconds")
                time.sleep(POLL_S)
        finally:
            client.close()

    def _server_environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if name not in DISTRIBUTED}
        environment = {name: value for name, value in environment.items() if not name.startswith("TORCHELASTIC_")}
        source = str(Path(ippo_cli.__file__).parent.parent)
        paths = [source, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
        environment |= {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONUNBUFFERED": "1"}
        return environment | self._environment


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Command-line arguments of vLLM for keyword arguments of its `EngineArgs`."""
    flags: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if value is True or value is False:
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, Mapping):
            flags += [f"--{flag}", json.dumps(dict(value))]
        elif isinstance(value, (list, tuple)):
            flags += [f"--{flag}", *map(str, value)]
        elif value is not None:
            flags += [f"--{flag}", str(value)]
    return flags
