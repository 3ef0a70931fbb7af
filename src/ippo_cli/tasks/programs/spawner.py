"""Process that starts programs: `python -P spawner.py SOCKET`. It imports the user's function once, then forks.

A forked program has the imported modules without the time of importing them, and whatever it does to its process
affects no other episode. Before the first request the process imports only the standard library.
"""

from __future__ import annotations

import array
import asyncio
import inspect
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Any

from ippo_cli.processes.descendants import (
    adopt_orphans,
    block_signals,
    kill_descendants,
    kill_group,
    request_signal_at_end_of_parent,
    wait_for_child,
)

HEADER = struct.Struct(">Q")
MAX_FDS = 2
POLL_S = 0.01
END_TIMEOUT_S = 3.0
"""How long the programs may take to end with this process."""


def main(connection: socket.socket) -> None:
    """Serve requests until the connection closes; then end all programs."""
    setting, _ = receive_message(connection) or ({}, [])
    function = None
    if setting.get("function"):
        sys.path[:] = setting["path"]
        from ippo_cli.config.errors import IppoError
        from ippo_cli.user_code.load import load_function

        try:
            function = load_function(setting["function"], setting["key"])
        except IppoError as error:
            send_message(connection, {"error": str(error)})
            return
        _preload_client()
    send_message(connection, {"ready": True})
    _Spawner(connection, function).serve()


def _preload_client() -> None:
    """Import what OpenAI's client imports when it is first used: a tenth of a second in every program otherwise."""
    openai = sys.modules.get("openai")
    if openai is not None:
        with suppress(Exception):
            client = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="none")
            _ = client.chat.completions


class _Spawner:
    """The running programs, and where each one's end is reported."""

    def __init__(self, connection: socket.socket, function: Any) -> None:
        self._connection, self._function = connection, function
        self._reports: dict[int, int] = {}  # process that guards a program -> file descriptor
        self._process = os.getpid()
        adopt_orphans()
        self._wakeup, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(self._wakeup, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def serve(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._connection, selectors.EVENT_READ)
        selector.register(self._wakeup, selectors.EVENT_READ)
        try:
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if self._wakeup in ready:
                    with suppress(BlockingIOError):
                        os.read(self._wakeup, 1 << 16)
                    self._reap()
                if self._connection.fileno() in ready:
                    received = receive_message(self._connection)
                    if received is None:
                        return
                    self._handle(*received)
        finally:
            for process in self._reports:
                _send_signal(process, signal.SIGTERM)
            self._wait_for_ends()
            kill_descendants()  # what the user's module has started

    def _handle(self, message: dict[str, Any], fds: list[int]) -> None:
        if "kill" in message:
            if message["kill"] in self._reports:
                _send_signal(message["kill"], signal.SIGTERM)
            return
        try:
            report, output = fds  # fewer if this process has too many open files
            process = os.fork()
        except (OSError, ValueError) as error:
            for fd in fds:
                os.close(fd)
            send_message(self._connection, {"error": f"no process can be started: {error}"})
            return
        if process == 0:
            self._guard_program(message, report, output)
        self._reports[process] = report
        os.close(output)
        send_message(self._connection, {"process": process})

    def _guard_program(self, message: dict[str, Any], report: int, output: int) -> None:
        """Run a program as the child of this process, which has just been forked, and report its end.

        Then, or after SIGTERM, ends all processes that the program has started: those in sessions of their own are
        children of this process once their parent has ended. Does not return.
        """
        try:
            mask = block_signals()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            request_signal_at_end_of_parent(signal.SIGTERM)
            adopt_orphans()
            self._connection.close()
            for other in self._reports.values():
                os.close(other)
            if os.getppid() != self._process:  # it ended before the request
                return
            program = os.fork()
            if program == 0:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                self._run_program(message, report, output)
            os.close(output)
            exit_code = wait_for_child(program, self._process)
            kill_group(program)
            kill_descendants()
            if exit_code is not None:
                _write_exit(report, exit_code)
        except OSError as error:
            _write_line(report, {"error": f"no process can be started: {error}"})
        finally:
            os._exit(0)

    def _run_program(self, message: dict[str, Any], report: int, output: int) -> None:
        """Run a program in this process, which has just been forked. Does not return."""
        status = 1
        try:
            request_signal_at_end_of_parent(signal.SIGKILL)
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDONLY)
            for target, source in enumerate((nothing, output, output)):
                os.dup2(source, target)
            for fd in (report, output):
                os.set_inheritable(fd, False)
            os.environ.update(message["environment"])
            if self._function is None:
                os.execvp(message["command"][0], message["command"])
            _write_line(report, run_function(self._function, message))
            status = 0
        except OSError as error:
            _write_line(report, {"error": f"{(message.get('command') or [''])[0]}: {error.strerror}"})
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        """Close the reports of programs that have ended."""
        for process in list(self._reports):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                report = self._reports.pop(process)
                if status:  # the process that guards the program was killed
                    _write_exit(report, os.waitstatus_to_exitcode(status))
                os.close(report)

    def _wait_for_ends(self) -> None:
        end = time.monotonic() + END_TIMEOUT_S
        while self._reports and time.monotonic() < end:
            self._reap()
            time.sleep(POLL_S)


def run_function(function: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Call the user's function for one episode: `{"value": ...}` or `{"error": ...}`."""
    from ippo_cli.processes.child import seed_generators, to_builtins
    from ippo_cli.tasks.programs.endpoint import Endpoint
    from ippo_cli.user_code.errors import format_user_error

    seed_generators(message["seed"])
    try:
        value = function(message["example"], Endpoint(**message["endpoint"]))
        if inspect.isawaitable(value):
            value = asyncio.run(_await(value))
        return {"value": to_builtins(value)}
    except (Exception, SystemExit) as error:
        return {"error": format_user_error(error)}


async def _await(awaitable: Any) -> Any:
    return await awaitable


def _write_line(fd: int, message: dict[str, Any]) -> None:
    data = memoryview(json.dumps(message).encode() + b"\n")
    with suppress(BrokenPipeError):
        while data:
            data = data[os.write(fd, data) :]


def _write_exit(report: int, exit_code: int) -> None:
    with suppress(BrokenPipeError):
        os.write(report, b"\n")  # the program may have ended within a line
    _write_line(report, {"exit": exit_code})


def _send_signal(process: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def raise_file_limit() -> None:
    """Allow as many open files as the system does: every running program has a few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def send_message(connection: socket.socket, message: dict[str, Any], fds: list[int] | None = None) -> None:
    """Send JSON, with file descriptors."""
    body = json.dumps(message, default=str).encode()
    header = HEADER.pack(len(body))
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    connection.sendmsg([header], ancillary)
    connection.sendall(body)


def receive_message(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and its file descriptors; None at the end of the connection."""
    head, ancillary, _, _ = connection.recvmsg(
        HEADER.size, socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize), socket.MSG_WAITALL
    )
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if len(head) < HEADER.size:
        return None
    body = bytearray()
    while len(body) < HEADER.unpack(head)[0]:
        part = connection.recv(min(HEADER.unpack(head)[0] - len(body), 1 << 20))
        if not part:
            return None
        body += part
    return json.loads(body), list(fds)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer ends this process
    raise_file_limit()
    main(socket.socket(fileno=int(sys.argv[1])))
