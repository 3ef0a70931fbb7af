"""Two ways of weights to a server's workers: shared memory on the same host, and a connection to another host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import Tensor

from ippo_cli.engine import distributed, progress
from ippo_cli.rollout.completion_client import CONNECT_TIMEOUT_S, UNIX, CompletionClient, ServerFailure
from ippo_cli.rollout.shared_tensors import SharedTensors
from ippo_cli.rollout.tensor_stream import StreamFailure, TensorSender, local_address

CHUNK_BYTES = 512 * 2**20
"""Weights that are in shared memory at once; one tensor may have more."""
REASON_S = 2.0
"""How long a server may take to report why its connection ended."""
RPC = "/collective_rpc"
DEFAULT_PORTS = {"http": 80, "https": 443}


class Workers:
    """Calls of methods that the worker extension adds to a server's workers."""

    def __init__(self, client: CompletionClient, timeout_s: float) -> None:
        self._client, self.timeout_s = client, timeout_s

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """The result of each worker. Raises `ServerFailure`."""
        body = {"method": method, "args": list(arguments)}
        return self._client.call("POST", RPC, body, timeout_s=self.timeout_s)["results"]

    def start(self, method: str, *arguments: Any) -> Future[Any]:
        """Start a call; the response has the `results`. It has no time limit."""
        return self._client.start_call("POST", RPC, {"method": method, "args": list(arguments)})


class WeightTransfer(Protocol):
    """Transfers weights from this process to a server's workers. Methods raise `ServerFailure`."""

    def send_weights(self, weights: Iterable[tuple[str, Tensor]], *, is_mapped: bool) -> dict[str, list[str]]:
        """Load weights in the workers: the parameters of the first worker that each tensor became part of.

        Empty if they are known (`is_mapped`). A tensor may be released after the next one is taken.
        """
        ...

    def share_folder(self, folder: Path) -> AbstractContextManager[str]:
        """A folder's path on the server's host, while the context is open."""
        ...


class SharedMemoryTransfer:
    """Weights pass through files in shared memory."""

    def __init__(self, workers: Workers, memory: SharedTensors) -> None:
        self._workers, self._memory = workers, memory

    def send_weights(self, weights: Iterable[tuple[str, Tensor]], *, is_mapped: bool) -> dict[str, list[str]]:
        places: dict[str, list[str]] = {}
        folder = self._memory.folder
        for chunk in _in_chunks(weights, CHUNK_BYTES):
            try:
                self._memory.write(chunk)
            except OSError as error:
                raise ServerFailure(f"the server cannot be sent weights through {folder}: {error.strerror}") from None
            places |= self._workers.call("ippo_load_shared", str(folder), is_mapped)[0]
        self._memory.clear()
        return places

    def share_folder(self, folder: Path) -> AbstractContextManager[str]:
        return nullcontext(str(folder))


class NetworkTransfer:
    """The workers connect to this process, and receive one tensor after the other."""

    def __init__(self, workers: Workers, host: str, port: int, *, num_workers: int) -> None:
        """`host`, `port`: where this process listens during a transfer; port 0: a free one."""
        self._workers, self._host, self._port, self._num_workers = workers, host, port, num_workers

    def send_weights(self, weights: Iterable[tuple[str, Tensor]], *, is_mapped: bool) -> dict[str, list[str]]:
        return self._stream(weights, "ippo_load_streamed", is_mapped)[0]

    @contextmanager
    def share_folder(self, folder: Path) -> Iterator[str]:
        files = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
        copies = self._stream(_as_tensors(files), "ippo_receive_files")
        try:
            yield copies[0]
        finally:
            self._workers.call("ippo_remove_files")

    def _stream(self, tensors: Iterable[tuple[str, Tensor]], method: str, *arguments: Any) -> list[Any]:
        """Call a method that receives tensors: the result of each worker."""
        call: Future[Any] | None = None
        place, timeout_s = "before the first tensor", self._workers.timeout_s
        try:
            with TensorSender(self._host, self._port, timeout_s=timeout_s) as sender:
                call = self._workers.start(method, sender.host, sender.port, sender.token, timeout_s, *arguments)
                with progress.grant_time(timeout_s):
                    sender.accept(self._num_workers, call.done)
                for name, tensor in tensors:
                    place = f"at the tensor {name}"
                    sender.send(name, tensor)
                    progress.heartbeat()
                place = "after the last tensor"
                sender.finish()
                with progress.grant_time(timeout_s):
                    return call.result(timeout_s)["results"]
        except TimeoutError:
            reason = f"it did not answer for {timeout_s:g} s"
        except StreamFailure as failure:
            reason = str(failure)
        finally:
            reported = _find_reason(call)
        raise ServerFailure(f"weights were not sent over the network: {place}, {reported or reason}")


def find_transfer_address(listen_address: str | None, server: str) -> tuple[str, int]:
    """Where this rank listens for a server's workers: host and port, 0 for a free one. Raises `ServerFailure`.

    `listen_address`: `HOST` or `HOST:PORT`, for rank 0; None: the address of this host on the route to the server.
    """
    if listen_address is not None:
        parts = urlsplit(f"//{listen_address}")
        return parts.hostname or "", 0 if parts.port is None else parts.port + distributed.global_rank()
    if server.startswith(UNIX):
        return "127.0.0.1", 0
    parts = urlsplit(server)
    try:
        return local_address(parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme], CONNECT_TIMEOUT_S), 0
    except StreamFailure as failure:
        raise ServerFailure(str(failure)) from None


def _find_reason(call: Future[Any] | None) -> str:
    """Why the server failed to receive, if it says so soon; ends the call otherwise."""
    if call is None:
        return ""
    try:
        call.result(REASON_S)
    except ServerFailure as failure:
        return str(failure)
    except TimeoutError:
        call.cancel()
    return ""


def _as_tensors(files: Mapping[str, bytes]) -> Iterator[tuple[str, Tensor]]:
    for name, content in files.items():
        yield name, torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())


def _in_chunks(weights: Iterable[tuple[str, Tensor]], size: int) -> Iterator[dict[str, Tensor]]:
    """Consecutive tensors of at most `size` bytes together; copies, since a tensor may be released after the next."""
    chunk: dict[str, Tensor] = {}
    total = 0
    for name, tensor in weights:
        num_bytes = tensor.numel() * tensor.element_size()
        if chunk and total + num_bytes > size:
            yield chunk
            chunk, total = {}, 0
        chunk[name] = tensor.detach().to("cpu", copy=True)
        total += num_bytes
    if chunk:
        yield chunk
