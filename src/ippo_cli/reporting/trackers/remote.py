"""Tracker with a server, on the side of rank 0: queues rows for a child process that sends them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from queue import Full, Queue
from typing import IO, Any

from ippo_cli.config.secrets import mask_secrets
from ippo_cli.engine import progress
from ippo_cli.reporting.trackers import child as child_program
from ippo_cli.reporting.trackers.sample_turns import without_tokens
from ippo_cli.reporting.trackers.tracker import Row, TrackerError
from ippo_cli.runs.output import print_text
from ippo_cli.runs.watchdog import descendants, surviving_children

MAX_QUEUED_MESSAGES = 1000  # messages that the child process has not read yet
FAILED_FINISH_TIMEOUT_S = 5.0  # maximum wait of a preempted or failed run, which may be killed soon
BLOCKED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class RemoteTracker:
    """Sends messages to a child process without blocking, and prints its replies; only `finish` waits.

    If the process cannot start, or ends, the next row raises `TrackerError`.
    """

    def __init__(
        self, kind: str, run: Mapping[str, Any], *, finish_timeout_s: float, environment: Mapping[str, str]
    ) -> None:
        self.name = f"tracker={kind}"
        self._finish_timeout_s = finish_timeout_s
        self._messages: Queue[bytes] = Queue(MAX_QUEUED_MESSAGES)
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._rows = self._delivered_rows = 0
        self._start_error = ""
        try:
            self._process = _start_process()
        except OSError as error:
            self._start_error = f"has no process ({error.strerror})"
            return
        surviving_children.add(self._process.pid)  # if the watchdog ends the run, it still delivers its rows
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        first = {
            "kind": kind,
            "run": run,
            "finish_timeout_s": finish_timeout_s,
            "environment": dict(environment),
            "path": [str(place) for place in sys.path],
            "parent": os.getpid(),
        }
        self._messages.put_nowait(_encode_message(first))
        threading.Thread(target=self._write_messages, args=(self._process.stdin,), name=self.name, daemon=True).start()

    def log(self, row: Row, iteration: int) -> None:
        self._rows += 1
        self._send_message({"row": dict(row), "at": time.time()})
        self._handle_replies()

    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send samples with secrets masked and without tokens, because they leave this machine."""
        self._send_message({"name": name, "samples": mask_secrets(without_tokens(rows))})

    def log_distributions(self, iteration: int, values: Mapping[str, Sequence[float]]) -> None:
        """Does nothing: servers receive metrics and samples."""

    def finish(self, state: str) -> None:
        problem = ""
        try:
            self._send_message({"finish": state})
            problem = self._wait_for_exit(state)
            self._handle_replies()
        except TrackerError as error:
            problem = str(error)
        finally:
            self._kill_process()
        if problem or self._rows > self._delivered_rows:
            raise TrackerError(problem or "has not logged all rows", self._rows - self._delivered_rows)

    def _wait_for_exit(self, state: str) -> str:
        """Wait for the process to exit; returns the problem if it has not."""
        assert self._process is not None
        limit_s = self._finish_timeout_s if state == "done" else min(self._finish_timeout_s, FAILED_FINISH_TIMEOUT_S)
        try:
            with progress.grant_time(limit_s):
                self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"has not finished within {limit_s:g} s and is killed"
        return ""

    def _send_message(self, message: Mapping[str, Any]) -> None:
        if self._process is None:
            raise TrackerError(self._start_error, missed=0)
        if (code := self._process.poll()) is not None:
            self._handle_replies(f"has lost its process ({'exit code' if code >= 0 else 'signal'} {abs(code)})")
        try:
            self._messages.put_nowait(_encode_message(message))
        except Full:
            raise TrackerError(f"is {MAX_QUEUED_MESSAGES} messages behind", missed=0) from None

    def _write_messages(self, pipe: IO[bytes]) -> None:
        """Write queued messages, in a separate thread, because the process may read slowly."""
        with suppress(OSError):  # the process has ended; the next row detects it
            while True:
                pipe.write(self._messages.get())
                pipe.flush()

    def _handle_replies(self, default_problem: str = "") -> None:
        """Process the child's replies. Raises `TrackerError` for the first problem; `finish` counts missed rows."""
        problem = ""
        for answer in self._read_replies():
            problem = problem or answer.get("problem", "")
            self._delivered_rows = answer.get("taken", self._delivered_rows)
            if "message" in answer:
                with suppress(OSError):  # the output may go to a full disk
                    print_text(f"{self.name}: {answer['message']}")
        if problem or default_problem:
            raise TrackerError(problem or default_problem, missed=0)

    def _read_replies(self) -> Iterator[dict[str, Any]]:
        assert self._process is not None
        assert self._process.stdout is not None
        with suppress(BlockingIOError, OSError):
            while chunk := os.read(self._process.stdout.fileno(), 2**16):
                self._buffer += chunk
        *lines, self._buffer = self._buffer.split(b"\n")
        yield from (json.loads(line) for line in lines)

    def _kill_process(self) -> None:
        """Kill the process and its descendants."""
        if self._process is None:
            return
        surviving_children.discard(self._process.pid)
        if self._process.poll() is not None:
            return
        for pid in (*descendants(self._process.pid), self._process.pid):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


def _encode_message(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _start_process() -> subprocess.Popen[bytes]:
    """Start the child process in a new session with preemption signals blocked; it ends with the run.

    The process, and services that its library starts, inherit the signal mask.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", str(child_program.__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
