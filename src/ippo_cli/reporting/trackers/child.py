"""The process that speaks with a tracker's server, beside rank 0: `python -P child.py`, told on stdin, heard on stdout.

A library for tracking may hang, fork, start threads and services, handle signals and print: none of that reaches the
training process, which can end this one at any time. Messages are lines of JSON; until the first one, which says where
modules are found, this imports the standard library alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from typing import Any, Protocol

RUN_CLASSES = {
    "wandb": ("ippo_cli.reporting.trackers.wandb_run", "WandbRun"),
    "mlflow": ("ippo_cli.reporting.trackers.mlflow_run", "MlflowRun"),
}
MAX_PENDING_ROWS = 1000  # that wait for a server; of more the oldest are given up
PARENT_POLL_S = 1.0
KILLED = "killed"  # how a run ended whose process is gone without a word

Message = dict[str, Any]
SendReply = Callable[[Message], None]


class RemoteRun(Protocol):
    """A run at a tracker's. Each call may take long and raise."""

    def log(self, row: Mapping[str, float | None], timestamp: float) -> None:
        """A row of metrics, and when it was logged in seconds since 1970."""
        ...

    def samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def finish(self, state: str) -> None: ...


class RowDelivery:
    """Rows in their order: what a server does not take is tried again with the next one, and at the end."""

    def __init__(self, begin: Callable[[], RemoteRun], tell: SendReply) -> None:
        self._begin, self._tell = begin, tell
        self._run: RemoteRun | None = None
        self._waiting: deque[Message] = deque()
        self._delivered_rows = 0

    def deliver(self) -> None:
        """Try all rows that wait."""
        try:
            if self._run is None:
                self._run = self._begin()
            while self._waiting:
                self._run.log(self._waiting[0]["row"], self._waiting[0]["at"])
                self._waiting.popleft()
                self._delivered_rows += 1
                self._tell({"taken": self._delivered_rows})
        except Exception as error:
            self._tell({"problem": f"takes no rows ({_format_error(error)})"})

    def take(self, message: Message) -> None:
        """One message of the training process."""
        if "row" in message:
            self._waiting.append(message)
            if len(self._waiting) > MAX_PENDING_ROWS:
                self._waiting.popleft()
            self.deliver()
        elif self._run is not None:
            try:
                self._run.samples(message["name"], message["samples"])
            except Exception as error:
                self._tell({"problem": f"takes no samples ({_format_error(error)})"})

    def end(self, state: str) -> None:
        """Try what waits for the last time, and end the run there."""
        self.deliver()
        try:
            if self._run is not None:
                self._run.finish(state)
        except Exception as error:
            self._tell({"problem": f"cannot end its run ({_format_error(error)})"})


def main() -> None:
    """Until the run has ended, or its process is gone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer

    def send_reply(message: Message) -> None:
        with suppress(OSError):  # the training process is gone, and what it has said is delivered all the same
            print(json.dumps(message), file=answers, flush=True)

    first = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = first["path"]
    for name, value in first["environment"].items():
        os.environ.setdefault(name, value)
    messages: SimpleQueue[Message] = SimpleQueue()
    for work in (
        lambda: _read_messages(messages),
        lambda: _exit_with_parent(first["parent"], first["finish_timeout_s"], messages),
    ):
        threading.Thread(target=work, daemon=True).start()

    def start_run() -> RemoteRun:
        module, name = RUN_CLASSES[first["kind"]]
        return getattr(import_module(module), name)(first["run"], send_reply)

    delivery = RowDelivery(start_run, send_reply)
    delivery.deliver()
    while "finish" not in (message := messages.get()):
        delivery.take(message)
    delivery.end(message["finish"])


def _read_messages(messages: SimpleQueue[Message]) -> None:
    for line in sys.stdin.buffer:
        messages.put(json.loads(line))
    messages.put({"finish": KILLED})


def _exit_with_parent(parent: int, patience_s: float, messages: SimpleQueue[Message]) -> None:
    """Once the training process is gone what it has said is still delivered, but not for ever."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    messages.put({"finish": KILLED})  # a process that it forked may hold the pipe open
    time.sleep(patience_s)
    os.killpg(0, signal.SIGKILL)


def _format_error(error: BaseException) -> str:
    """One line without secrets."""
    from ippo_cli.config.secrets import redact_text

    return " ".join(redact_text(f"{type(error).__name__}: {error!s:.300}").split())


if __name__ == "__main__":
    code = 1
    try:
        main()
        code = 0
    finally:
        os._exit(code)  # no library's exit handler keeps it
