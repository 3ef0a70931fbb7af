"""A pool of child processes that call a function, with a timeout per call and restarts."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.engine import progress
from ippo_cli.processes import child as child_program
from ippo_cli.processes.child import LENGTH_HEADER, pack_message

CHILD_SCRIPT = str(child_program.__file__)
START_TIMEOUT_S = 120.0
"""Timeout for starting a process and importing its function."""
KILL_TIMEOUT_S = 10.0
"""Timeout for killing a process with those that it has started."""
MAX_FORWARDED_BYTES = 2**16
"""Output of the processes that is forwarded to stderr, per batch of calls."""
Call = tuple[tuple[Any, ...], Mapping[str, Any]]


class CallFailed(RuntimeError):
    """A call that raised, took too long, or ended its process."""


class ProcessPool:
    """Up to `size` processes, started on demand, each with one call at a time.

    A process is killed, with its own child processes, if its call takes longer than `timeout_s`. With
    `factory_arguments`, each process calls `function` with them when it starts, and then the function that it returns.
    """

    def __init__(
        self,
        function: str,
        key: str,
        size: int,
        timeout_s: float | None,
        *,
        factory_arguments: tuple[Any, ...] | None = None,
    ) -> None:
        self.setting = {"function": function, "key": key, "factory_arguments": factory_arguments}
        self.size, self.timeout_s = size, timeout_s
        self._idle: list[_Child] = []
        self._busy: dict[_Child, int] = {}
        self._output = _OutputForwarder()

    def call(self, calls: Sequence[Call]) -> list[Any]:
        """The result of each call or its `CallFailed`, in the order of the calls."""
        results: list[Any] = [None] * len(calls)
        waiting = deque(range(len(calls)))
        self._output.reset_budget()
        try:
            self._start(min(self.size, len(calls)))
            while waiting or self._busy:
                while waiting and len(self._busy) < self.size:
                    self._dispatch(waiting.popleft(), calls, results)
                self.wait_for_result(results)
        finally:  # after an interruption, no late answer may reach the next batch
            for child in self._busy:
                child.kill()
            self._busy.clear()
        return results

    def close(self) -> None:
        """Kill the child processes."""
        for child in (*self._idle, *self._busy):
            child.kill()
        self._idle.clear()
        self._busy.clear()
        self._output.close()

    def _start(self, number: int) -> None:
        """Start processes in parallel, since importing takes seconds."""
        num_idle = len(self._idle)
        try:
            for _ in range(number - num_idle):
                self._idle.append(_Child(self.setting, self._output.write_fd))
            for child in self._idle[num_idle:]:
                child.await_ready()
        except BaseException:
            self.close()
            raise

    def _dispatch(self, index: int, calls: Sequence[Call], results: list[Any]) -> None:
        if not self._idle:
            self._start(1)
        child = self._idle.pop()
        self._busy[child] = index
        try:
            child.send_call(calls[index], self.timeout_s)
        except OSError:
            self._fail_call(child, results, "the process exited before the call")

    def wait_for_result(self, results: list[Any]) -> None:
        """Wait until at least one call returns, fails or times out."""
        deadlines = [child.deadline for child in self._busy if child.deadline is not None]
        timeout_s = max(min(deadlines) - time.monotonic(), 0.0) if deadlines else None
        poll = select.poll()
        children = {child.answers: child for child in self._busy}
        for number in children:
            poll.register(number, select.POLLIN)
        with nullcontext() if timeout_s is None else progress.grant_time(timeout_s):
            ready = poll.poll(None if timeout_s is None else timeout_s * 1000 + 1)
        for number, _ in ready:
            self._receive(children[number], results)
        now = time.monotonic()
        for child in [child for child in self._busy if child.deadline is not None and child.deadline <= now]:
            self._fail_call(child, results, f"the call took longer than {self.timeout_s:g} s")

    def _receive(self, child: _Child, results: list[Any]) -> None:
        try:
            answer = child.receive()
        except EOFError:
            self._fail_call(child, results, f"the call ended its process ({child.exit_reason()})")
            return
        if answer is not None:
            progress.heartbeat()
            ok, value = answer
            results[self._busy.pop(child)] = value if ok else CallFailed(value)
            self._idle.append(child)

    def _fail_call(self, child: _Child, results: list[Any], why: str) -> None:
        results[self._busy.pop(child)] = CallFailed(why)
        child.kill()


class _Child:
    """A child process with its request and answer pipes."""

    def __init__(self, setting: Mapping[str, Any], output_fd: int) -> None:
        requests, self._requests = os.pipe()
        self.answers, answers = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", CHILD_SCRIPT, str(requests), str(answers), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output_fd,
                stderr=output_fd,
                pass_fds=(requests, answers),
                start_new_session=True,  # not reached by signals to the run's group; killed as a group
            )
        except BaseException:
            os.close(self._requests)
            os.close(self.answers)
            raise
        finally:
            os.close(requests)
            os.close(answers)
        self.deadline: float | None = None
        self._buffer = bytearray()
        self._setting = {**setting, "path": list(sys.path)}

    def await_ready(self) -> None:
        with suppress(BrokenPipeError):
            self._send(self._setting)
        end = time.monotonic() + START_TIMEOUT_S
        while (left := end - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self.answers, select.POLLIN)
            if poll.poll(left * 1000):
                try:
                    answer = self.receive()
                except EOFError:
                    break
                if answer is not None:
                    if not answer[0]:
                        raise ConfigError(self._setting_text(), "cannot be imported in a child process", answer[1])
                    return
        raise CallFailed(f"the child process for {self._setting_text()} did not start ({self.exit_reason()})")

    def send_call(self, call: Call, timeout_s: float | None) -> None:
        self._send(call)
        self.deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def receive(self) -> tuple[bool, Any] | None:
        """The answer, or None while it is incomplete; raises `EOFError` if the process closed the pipe."""
        chunk = os.read(self.answers, 2**20)
        if not chunk:
            raise EOFError
        self._buffer += chunk
        if len(self._buffer) < LENGTH_HEADER.size:
            return None
        end = LENGTH_HEADER.size + LENGTH_HEADER.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        answer = pickle.loads(self._buffer[LENGTH_HEADER.size : end])
        del self._buffer[:end]
        self.deadline = None
        return answer

    def exit_reason(self) -> str:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "it closed its pipe without exiting"
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    def kill(self) -> None:
        self._process.terminate()  # it kills what the function has started
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_TIMEOUT_S)
        self._process.kill()
        self._process.wait()
        for number in (self._requests, self.answers):
            os.close(number)

    def _send(self, message: Any) -> None:
        data = memoryview(pack_message(message))
        while data:
            data = data[os.write(self._requests, data) :]

    def _setting_text(self) -> str:
        return f"{self._setting['key']}={self._setting['function']}"


class _OutputForwarder:
    """Forwards the first bytes of the processes' output to stderr and discards the rest, so that writes never block."""

    def __init__(self) -> None:
        self._read, self._write = -1, -1
        self._remaining = 0

    @property
    def write_fd(self) -> int:
        """The file descriptor for the processes' output."""
        if self._write < 0:
            self._read, self._write = os.pipe()
            threading.Thread(target=self._forward, args=(self._read,), name="printed", daemon=True).start()
        return self._write

    def reset_budget(self) -> None:
        self._remaining = MAX_FORWARDED_BYTES

    def close(self) -> None:
        if self._write >= 0:
            os.close(self._write)
            self._write = -1

    def _forward(self, source: int) -> None:
        while chunk := os.read(source, 2**16):
            forwarded, self._remaining = chunk[: self._remaining], max(0, self._remaining - len(chunk))
            if forwarded:
                with suppress(OSError, ValueError):
                    sys.stderr.write(forwarded.decode(errors="replace"))
                    sys.stderr.flush()
        os.close(source)
