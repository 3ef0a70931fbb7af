"""Child process of rank 0 that sends rows to a tracker's server: `python -P child.py`, messages on stdin and stdout.

It isolates training from tracking libraries, which may hang, fork, start threads and services, handle signals and
print; rank 0 can kill it at any time. Messages are JSON lines. Until the first message, which has the module search
path, it imports only the standard library.
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
    "trackio": ("ippo_cli.reporting.trackers.trackio_run", "TrackioRun"),
}
MAX_PENDING_ROWS = 1000  # undelivered rows; beyond this the oldest are dropped
PARENT_POLL_S = 1.0
KILLED = "killed"  # final state of a run whose process ended without `finish`

Message = dict[str, Any]
SendReply = Callable[[Message], None]


class RemoteRun(Protocol):
    """A run in a tracker. Each call may take long and raise."""

    def log(self, row: Mapping[str, float | None], timestamp: float) -> None:
        """Log a row of metrics; `timestamp` in seconds since 1970."""
        ...

    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def finish(self, state: str) -> None: ...


class RowDelivery:
    """Delivers rows in order; failed rows are retried with the next row and at the end."""

    def __init__(self, begin: Callable[[], RemoteRun], tell: SendReply) -> None:
        self._start_run, self._send_reply = begin, tell
        self._run: RemoteRun | None = None
        self._pending: deque[Message] = deque()
        self._delivered_rows = 0

    def deliver(self) -> None:
        """Try to deliver all pending rows."""
        try:
            if self._run is None:
                self._run = self._start_run()
            while self._pending:
                self._run.log(self._pending[0]["row"], self._pending[0]["at"])
                self._pending.popleft()
                self._delivered_rows += 1
                self._send_reply({"taken": self._delivered_rows})
        except Exception as error:
            self._send_reply({"problem": f"cannot log rows ({_format_error(error)})"})

    def handle_message(self, message: Message) -> None:
        """Handle one message of the training process."""
        if "row" in message:
            self._pending.append(message)
            if len(self._pending) > MAX_PENDING_ROWS:
                self._pending.popleft()
            self.deliver()
        elif self._run is not None:
            try:
                self._run.log_samples(message["name"], message["samples"])
            except Exception as error:
                self._send_reply({"problem": f"cannot log samples ({_format_error(error)})"})

    def finish(self, state: str) -> None:
        """Deliver pending rows a last time, and finish the run in the tracker."""
        self.deliver()
        try:
            if self._run is not None:
                self._run.finish(state)
        except Exception as error:
            self._send_reply({"problem": f"cannot finish its run ({_format_error(error)})"})


def main() -> None:
    """Handle messages until the run or its process ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that a library's prints do not mix with replies

    def send_reply(message: Message) -> None:
        with suppress(OSError):  # the training process is gone; its rows are still delivered
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
        delivery.handle_message(message)
    delivery.finish(message["finish"])


def _read_messages(messages: SimpleQueue[Message]) -> None:
    for line in sys.stdin.buffer:
        messages.put(json.loads(line))
    messages.put({"finish": KILLED})


def _exit_with_parent(parent: int, patience_s: float, messages: SimpleQueue[Message]) -> None:
    """When the training process is gone, deliver its remaining rows for at most `patience_s`, then exit."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    messages.put({"finish": KILLED})  # a forked process may keep the pipe open
    time.sleep(patience_s)
    os.killpg(0, signal.SIGKILL)


def _format_error(error: BaseException) -> str:
    """The error as one line without secrets."""
    from ippo_cli.config.secrets import redact_text

    return " ".join(redact_text(f"{type(error).__name__}: {error!s:.300}").split())


if __name__ == "__main__":
    code = 1
    try:
        main()
        code = 0
    finally:
        os._exit(code)  # skip exit handlers of libraries
