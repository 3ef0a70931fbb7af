"""Tensors over a TCP connection, for a process on another host: one sender listens, receivers connect with a token.

A plain connection and no process group: it has its own time limits, it ends with its sender, and it changes no
process group of the sender's or the receiver's.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

TOKEN_BYTES = 32
HANDSHAKE_S = 5.0
"""For a connection to send its token; receivers send it at once."""
POLL_S = 0.2
HEADER = struct.Struct("!I")
"""Length of the JSON that describes the next tensor; 0 after the last one."""
MAX_HEADER = 1 << 16


class StreamFailure(RuntimeError):
    """A connection that was not made, ended too early, or did not continue in time."""


class TensorSender:
    """Listens at an address, and sends each tensor to all receivers; a receiver needs the token."""

    def __init__(self, host: str, port: int, *, timeout_s: float) -> None:
        """`port` 0: a free one. `timeout_s`: the longest time without progress. Raises `StreamFailure`."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._timeout_s, self._connections = timeout_s, list[socket.socket]()
        self.token = secrets.token_hex(TOKEN_BYTES)
        try:
            self._listening = socket.create_server((host, port), family=family)
        except OSError as error:
            raise StreamFailure(f"cannot listen at {host}:{port} ({error.strerror or error})") from None
        self.host, self.port = self._listening.getsockname()[:2]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        for connection in self._connections:
            connection.close()

    def accept(self, count: int, has_ended: Callable[[], bool]) -> None:
        """Wait for `count` receivers. Raises `StreamFailure` after the time limit, or once `has_ended()`."""
        end = time.monotonic() + self._timeout_s
        self._listening.settimeout(POLL_S)
        while len(self._connections) < count:
            if has_ended():
                raise StreamFailure("it did not connect")
            if time.monotonic() > end:
                raise StreamFailure(f"it did not connect to {self.host}:{self.port} within {self._timeout_s:g} s")
            with suppress(TimeoutError):
                connection, _ = self._listening.accept()
                if self._has_token(connection):
                    connection.settimeout(self._timeout_s)
                    self._connections.append(connection)
                else:
                    connection.close()
        self._listening.close()  # no other receiver is expected

    def send(self, name: str, tensor: Tensor) -> None:
        """Send a tensor; returns when the system has taken it. Raises `StreamFailure`."""
        described = {"name": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        header = json.dumps(described).encode()
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        self._send_all(HEADER.pack(len(header)) + header)
        self._send_all(data)

    def finish(self) -> None:
        """Tell the receivers that no tensor follows. Raises `StreamFailure`."""
        self._send_all(HEADER.pack(0))

    def _send_all(self, data: bytes | memoryview) -> None:
        try:
            for connection in self._connections:
                _send(connection, memoryview(data))
        except TimeoutError:
            raise StreamFailure(f"it took nothing for {self._timeout_s:g} s") from None
        except OSError as error:
            raise StreamFailure(f"the connection ended ({error.strerror or error})") from None

    def _has_token(self, connection: socket.socket) -> bool:
        connection.settimeout(HANDSHAKE_S)
        try:
            received = bytes(_receive(connection, len(self.token)))
        except (OSError, StreamFailure):
            return False
        return hmac.compare_digest(received, self.token.encode())


def receive_tensors(host: str, port: int, token: str, timeout_s: float) -> Iterator[tuple[str, Tensor]]:
    """Connect to a `TensorSender`, and yield its tensors. Raises `StreamFailure`.

    `timeout_s`: the longest time without progress; the sender may gather a tensor from other processes meanwhile.
    """
    try:
        connection = socket.create_connection((host, port), timeout=timeout_s)
    except OSError as error:
        reason = error.strerror or error
        raise StreamFailure(f"{socket.gethostname()} cannot connect to {host}:{port} ({reason})") from None
    with connection:
        connection.sendall(token.encode())
        while True:
            try:
                (length,) = HEADER.unpack(_receive(connection, HEADER.size))
                if length == 0:
                    return
                if length > MAX_HEADER:
                    raise StreamFailure("the sender's data are no tensors")
                entry = json.loads(_receive(connection, length))
                tensor = torch.empty(entry["shape"], dtype=getattr(torch, entry["dtype"]))
                _receive_into(connection, tensor.reshape(-1).view(torch.uint8).numpy().data)
            except TimeoutError:
                raise StreamFailure(f"the sender sent nothing for {timeout_s:g} s") from None
            except OSError as error:
                raise StreamFailure(f"the connection ended ({error.strerror or error})") from None
            yield entry["name"], tensor


def local_address(host: str, port: int, timeout_s: float) -> str:
    """This host's address on the route to a server. Raises `StreamFailure`."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            return connection.getsockname()[0]
    except OSError as error:
        raise StreamFailure(f"cannot connect to {host}:{port} ({error.strerror or error})") from None


def _send(connection: socket.socket, data: memoryview) -> None:
    """As `sendall`, but the time limit is for each part."""
    while data:
        data = data[connection.send(data) :]


def _receive(connection: socket.socket, count: int) -> bytearray:
    received = bytearray(count)
    _receive_into(connection, memoryview(received))
    return received


def _receive_into(connection: socket.socket, view: memoryview) -> None:
    while view:
        count = connection.recv_into(view)
        if not count:
            raise StreamFailure("the sender ended the connection")
        view = view[count:]
