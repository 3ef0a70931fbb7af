"""The output of a vLLM server in a file, and the error that its last lines make."""

from __future__ import annotations

import re
from pathlib import Path
from typing import IO

from ippo_cli.config.errors import EngineError
from ippo_cli.config.secrets import redact_text

LOG_BYTES = 256 * 1024  # of the log's end that is read for an error
MAX_ERRORS, LOG_LINES = 4, 8  # in a message: the first errors, since later ones follow from them, and the last lines
LOG_PREFIX = re.compile(r"^\(\w+ pid=\d+\) (?:(?:INFO|WARNING|ERROR) \S+ \S+ \[\S+\] )?")
LOG_ERROR = re.compile(
    r"^(?:[\w.]*(?:Error|Exception|Exit|Killed)\b: .+|\S+: error: .+|.*(?:died unexpectedly|exit code: -).*)"
)
MAX_WIDTH = 300
LOG_NOISE = re.compile(r"nanobind|leaked|^\s*[\^~]+$|resource_tracker|skipped remainder|^\s*\[?--")
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


class ServerLog:
    """The log of one server, written by the server and read by every rank that uses it."""

    def __init__(self, path: Path, *, start: int = 0) -> None:
        """`start`: bytes before this server's output, of a server that wrote to the same file before."""
        self.path, self.start = path, start

    def open(self) -> IO[bytes]:
        """The file, for a new server's output after that of earlier ones."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("ab")
        self.start = file.seek(0, 2)
        return file

    def last_lines(self) -> list[str]:
        """The end of the server's output, without its prefixes and progress bars."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(self.start, self.path.stat().st_size - LOG_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        lines = [LOG_PREFIX.sub("", line).rstrip()[:MAX_WIDTH] for line in redact_text(text).splitlines()]
        return [line for line in lines if line and not LOG_NOISE.search(line)]

    def make_error(self, name: str, reason: str, exit_code: int | None) -> EngineError:
        """The error for a failure of the server of `name`, with its first errors, its last lines, and a remedy.

        `exit_code`: of the server, if it has ended and this process knows.
        """
        lines = self.last_lines()
        ended = "" if exit_code is None else f" (it ended with exit code {exit_code})"
        errors = list(dict.fromkeys(line for line in lines if LOG_ERROR.match(line)))[:MAX_ERRORS]
        text = "\n".join(errors or lines[-LOG_LINES:])
        remedy = next((remedy for pattern, remedy in REMEDIES.items() if re.search(pattern, text)), DEFAULT_REMEDY)
        excerpt = "".join(f"\n  {line}" for line in [*errors, "...", *lines[-LOG_LINES:]])
        return EngineError(f"rollout=vllm: {name}: {reason}{ended}; {remedy}\nFrom {self.path}:{excerpt}")
