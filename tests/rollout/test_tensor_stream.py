"""Tensors over a connection arrive in another process unchanged; receivers need the token; waits have a limit."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ippo_cli.rollout.tensor_hash import tensor_hash
from ippo_cli.rollout.tensor_stream import StreamFailure, TensorSender, local_address, receive_tensors

READER = """
import sys
from ippo_cli.rollout.tensor_hash import tensor_hash
from ippo_cli.rollout.tensor_stream import receive_tensors
for name, tensor in receive_tensors(sys.argv[1], int(sys.argv[2]), sys.argv[3], 120.0):
    print(name, tuple(tensor.shape), tensor.dtype, tensor_hash(tensor))
"""


def make_tensors() -> dict[str, torch.Tensor]:
    return {
        "weight": torch.randn(500, 700),
        "bias": torch.randn(3).to(torch.bfloat16),
        "scale": torch.tensor(2.5),
        "transposed": torch.randn(4, 6).t(),
        "ids": torch.arange(9),
        "none": torch.zeros(0, 4),
    }


@contextmanager
def receive_in_thread(sender: TensorSender, token: str | None = None, timeout_s: float = 10.0) -> Iterator[list[Any]]:
    """Tensors that a receiver gets, or its error at the end, complete after the block."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.extend(receive_tensors(sender.host, sender.port, token or sender.token, timeout_s))
        except StreamFailure as failure:
            found.append(failure)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield found
    thread.join(timeout=20)
    assert not thread.is_alive()


def never() -> bool:
    return False


def send_much(sender: TensorSender) -> None:
    """More than the system keeps for a receiver that reads nothing."""
    for _ in range(50):
        sender.send("large", torch.zeros(1 << 20))


def test_two_processes_receive_the_same() -> None:
    tensors = make_tensors()
    with TensorSender("127.0.0.1", 0, timeout_s=120.0) as sender:
        command = [sys.executable, "-c", READER, sender.host, str(sender.port), sender.token]
        readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        sender.accept(2, never)
        for name, tensor in tensors.items():
            sender.send(name, tensor)
        sender.finish()
        lines = [reader.communicate(timeout=120)[0].splitlines() for reader in readers]
    expected = [f"{name} {tuple(t.shape)} {t.dtype} {tensor_hash(t)}" for name, t in tensors.items()]
    assert lines == [expected, expected]


def test_receiver_without_the_token_gets_nothing() -> None:
    with (
        TensorSender("127.0.0.1", 0, timeout_s=1.0) as sender,
        receive_in_thread(sender, "0" * 64) as found,
        pytest.raises(StreamFailure, match=r"did not connect to 127.0.0.1:\d+ within 1 s"),
    ):
        sender.accept(1, never)
    assert isinstance(found[0], StreamFailure)


def test_receiver_with_the_token_is_served_after_a_stranger() -> None:
    with TensorSender("127.0.0.1", 0, timeout_s=10.0) as sender:
        stranger = socket.create_connection((sender.host, sender.port))
        stranger.sendall(b"GET / HTTP/1.1\r\n" + b"x" * 80)
        with receive_in_thread(sender) as found:
            sender.accept(1, never)
            sender.send("one", torch.ones(3))
            sender.finish()
        assert [name for name, _ in found] == ["one"]
        with pytest.raises(OSError, match=r"refused"):
            socket.create_connection((sender.host, sender.port))
        stranger.close()


def test_accepting_ends_when_no_receiver_will_come() -> None:
    start = time.monotonic()
    with TensorSender("127.0.0.1", 0, timeout_s=60.0) as sender, pytest.raises(StreamFailure, match="did not connect"):
        sender.accept(1, lambda: True)
    assert time.monotonic() - start < 5


def test_receiver_that_reads_nothing_is_an_error() -> None:
    with TensorSender("127.0.0.1", 0, timeout_s=1.0) as sender:
        receiver = socket.create_connection((sender.host, sender.port))
        receiver.sendall(sender.token.encode())
        sender.accept(1, never)
        with pytest.raises(StreamFailure, match="took nothing for 1 s"):
            send_much(sender)
        receiver.close()


def test_receiver_that_ends_is_an_error() -> None:
    with TensorSender("127.0.0.1", 0, timeout_s=5.0) as sender:
        receiver = socket.create_connection((sender.host, sender.port))
        receiver.sendall(sender.token.encode())
        sender.accept(1, never)
        receiver.close()
        with pytest.raises(StreamFailure, match="the connection ended"):
            send_much(sender)


@pytest.mark.parametrize(("is_closed", "message"), [(True, "ended the connection"), (False, "sent nothing for 1 s")])
def test_sender_that_stops_is_an_error_of_the_receiver(is_closed: bool, message: str) -> None:
    with TensorSender("127.0.0.1", 0, timeout_s=5.0) as sender, receive_in_thread(sender, timeout_s=1.0) as found:
        sender.accept(1, never)
        sender.send("one", torch.ones(2))
        if is_closed:
            sender.__exit__(None, None, None)
        else:
            time.sleep(1.5)
    assert found[0][0] == "one"
    assert message in str(found[1])


def test_address_on_the_route_to_a_server() -> None:
    with socket.create_server(("127.0.0.2", 0)) as server:
        assert local_address(*server.getsockname()[:2], 5.0).startswith("127.0.0.")
    with pytest.raises(StreamFailure, match="cannot connect to"):
        local_address("127.0.0.1", 1, 5.0)


def test_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(StreamFailure, match=r"cannot listen at 192.0.2.1:0"):
        TensorSender("192.0.2.1", 0, timeout_s=1.0)
