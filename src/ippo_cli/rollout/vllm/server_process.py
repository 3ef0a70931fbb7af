"""A vLLM server that a run starts and ends; it listens at a socket in a private folder, so that no port is needed."""

from __future__ import annotations

import atexit
import json
import os
import re
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
from ippo_cli.config.errors import EngineError
from ippo_cli.config.secrets import redact_text
from ippo_cli.rollout.completion_client import UNIX, CompletionClient, ServerFailure
from ippo_cli.rollout.vllm import supervise

POLL_S = 0.25
CLOSE_S = 15.0  # above the supervisor's grace
LOG_BYTES = 256 * 1024  # of the log's end that is read for an error
MAX_ERRORS, LOG_LINES = 4, 8  # in a message: the first errors, since later ones follow from them, and the last lines
LOG_PREFIX = re.compile(r"^\(\w+ pid=\d+\) (?:(?:INFO|WARNING|ERROR) \S+ \S+ \[\S+\] )?")
LOG_ERROR = re.compile(
    r"^(?:[\w.]*(?:Error|Exception|Exit|Killed)\b: .+|\S+: error: .+|.*(?:died unexpectedly|exit code: -).*)"
)
MAX_WIDTH = 300
LOG_NOISE = re.compile(r"nanobind|leaked|^\s*[\^~]+$|resource_tracker|skipped remainder|^\s*\[?--")
DISTRIBUTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
"""Variables of the trainer's process group, which the server would take for its own."""
OUT_OF_MEMORY = (
    r"out of memory|OutOfMemory|[Cc]annot allocate memory|bad_alloc|less than requested memory|exit code: -9"
)
REMEDIES = {
    OUT_OF_MEMORY: "set rollout.vllm.kv_cache_gib or rollout.decode_batch_size lower, or use rollout=hf",
    r"KV cache.*(?:larger|more) than|No available memory for the cache blocks": "set rollout.vllm.kv_cache_gib higher, "
    "or rollout.context_limit lower",
    r"No module named '?vllm": "pip install 'ippo-cli[vllm]', or scripts/vllm_environment.sh without a GPU",
    r"unrecognized arguments|Unknown argument|invalid choice": "correct rollout.vllm.engine_args",
    r"are not supported for now|has no vLLM implementation": "use rollout=hf for this model",
    r"No space left on device": "free space in the temporary folder (TMPDIR) and in /dev/shm",
}
DEFAULT_REMEDY = "read the log; rollout=hf samples without vLLM"


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
        self._name, self.log_path, self._start_timeout_s = name, log_path, start_timeout_s
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
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        folders = ":".join(map(str, [self._folder, *self._remove_at_end]))
        command = [sys.executable, "-I", supervise.__file__, str(os.getpid()), folders]
        command += [sys.executable, "-m", "ippo_cli.rollout.vllm.serve", str(self._model_folder)]
        command += ["--uds", str(self._folder / "socket"), "--served-model-name", self.model_name]
        command += command_line(self._arguments)
        atexit.register(self.close)
        try:
            with self.log_path.open("wb") as log:
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
        lines = self.last_lines()
        self.close()
        ended = "" if code is None else f" (it ended with exit code {code})"
        errors = list(dict.fromkeys(line for line in lines if LOG_ERROR.match(line)))[:MAX_ERRORS]
        text = "\n".join(errors or lines[-LOG_LINES:])
        remedy = next((remedy for pattern, remedy in REMEDIES.items() if re.search(pattern, text)), DEFAULT_REMEDY)
        excerpt = "".join(f"\n  {line}" for line in [*errors, "...", *lines[-LOG_LINES:]])
        return EngineError(f"rollout=vllm: {self._name}: {reason}{ended}; {remedy}\nFrom {self.log_path}:{excerpt}")

    def last_lines(self) -> list[str]:
        """The end of the server's output, without its prefixes and progress bars."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(0, self.log_path.stat().st_size - LOG_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        lines = [LOG_PREFIX.sub("", line).rstrip()[:MAX_WIDTH] for line in redact_text(text).splitlines()]
        return [line for line in lines if line and not LOG_NOISE.search(line)]

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
