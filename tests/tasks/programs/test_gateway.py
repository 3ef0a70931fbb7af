"""The gateway's HTTP interface, without a model."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from ippo_cli.tasks.environment import Action
from ippo_cli.tasks.programs import gateway as gateway_module
from ippo_cli.tasks.programs.connections import ConnectionLimits
from ippo_cli.tasks.programs.gateway import Gateway
from ippo_cli.tasks.programs.session import CallSession

pytest.importorskip("aiohttp", reason="needs the extra program")


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway()
    yield made
    made.close()


def post(url: str, body: Any, key: str = "") -> tuple[int, Any]:
    """Status and JSON of a response."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=10) as response:
            return response.status, json.loads(response.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


def test_other_interfaces_name_the_one_that_is_served(gateway: Gateway) -> None:
    status, answer = post(f"{gateway.base_url}/responses", {"model": "low", "input": "Hello"})
    assert status == 404
    assert answer["error"]["message"].startswith(
        "POST /v1/responses is not served: let the client use chat completions"
    )


def test_settings_without_effect_are_reported_once(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "_reported", set())
    session = CallSession(agents=["low"], stop_strings={}, max_new_tokens={"low": 1000})
    gateway.open(session)
    settings = {"temperature": 0.5, "tool_choice": "required", "response_format": {"type": "json_object"}}
    body = {"model": "low", "messages": [{"role": "user", "content": "Hello"}], **settings, "max_tokens": 1001}
    answers: list[tuple[int, Any]] = []
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            client = Thread(
                target=lambda: answers.append(post(f"{gateway.base_url}/chat/completions", body, session.key))
            )
            client.start()
            assert session.wait(10)
            session.take()["low"].respond(Action("Yes.", True))
            client.join(10)
    assert [(status, answer["choices"][0]["message"]["content"]) for status, answer in answers] == [(200, "Yes.")] * 2
    found = [record.getMessage() for record in caplog.records]
    assert len(found) == 4
    for setting in (
        "temperature=0.5",
        "tool_choice=required",
        "response_format=json_object",
        "max_tokens=1001 above rollout.max_new_tokens=1000",
    ):
        assert sum(f"has {setting}, which has no effect" in text for text in found) == 1


def get(url: str, key: str) -> tuple[int, Any]:
    try:
        with urlopen(Request(url, headers={"Authorization": f"Bearer {key}"}), timeout=10) as response:
            return response.status, json.loads(response.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


def test_models_are_described_one_by_one(gateway: Gateway) -> None:
    session = CallSession(agents=["low"], stop_strings={})
    gateway.open(session)
    assert get(f"{gateway.base_url}/models/low", session.key)[1]["id"] == "low"
    status, answer = get(f"{gateway.base_url}/models/other", session.key)
    assert (status, answer["error"]["message"]) == (404, "model='other' is not an agent; the agents are low")
    assert get(f"{gateway.base_url}/models/low", "no key")[0] == 401


def test_refused_addresses_are_counted_for_the_episode(gateway: Gateway) -> None:
    session = CallSession(agents=["low"], stop_strings={})
    gateway.open(session)
    _, answer = post(f"{gateway.base_url}/responses", {"model": "low", "input": "Hello"}, session.key)
    assert "set_default_openai_api('chat_completions')" in answer["error"]["message"]
    assert (session.refused_path, session.num_refused) == ("/v1/responses", 1)


def test_settings_cannot_control_a_terminal(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "_reported", set())
    with caplog.at_level(logging.WARNING):
        gateway_module._report_ignored("temperature", "\x1b[2J\nippo: done")
        gateway_module._report_ignored("\x1b[31mred", {"a": "\x1b[2J"})
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert len(caplog.records) == 2


def test_malformed_requests_write_no_traceback(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20000 + b"\r\n\r\n")
        assert b"400" in connection.recv(100)
    assert caplog.records == []


@pytest.fixture
def small_gateway() -> Iterator[Gateway]:
    made = Gateway(limits=ConnectionLimits(idle_s=0.5, body_s=0.5, max_connections=3))
    yield made
    made.close()


def connect(gateway: Gateway) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), timeout=10)


def send_request(connection: socket.socket, body: bytes = b"", key: str = "") -> None:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    connection.sendall(f"{head}Content-Length: {max(len(body), 1)}\r\n\r\n".encode() + body)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:"], ids=["nothing", "half of a header"])
def test_connection_without_a_request_is_closed(small_gateway: Gateway, sent: bytes) -> None:
    with connect(small_gateway) as connection:
        connection.sendall(sent)
        assert connection.recv(100) == b""


def test_connection_is_closed_when_it_is_idle_after_a_request(small_gateway: Gateway) -> None:
    with connect(small_gateway) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 401")
        assert connection.recv(100) == b""


def test_body_that_does_not_arrive_is_refused(small_gateway: Gateway) -> None:
    session = CallSession(agents=["low"], stop_strings={})
    small_gateway.open(session)
    with connect(small_gateway) as connection:
        send_request(connection, key=session.key)
        answer = connection.recv(1000)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"the body did not arrive in 0.5 s" in answer


def test_new_connection_closes_the_oldest_idle_one() -> None:
    gateway = Gateway(limits=ConnectionLimits(max_connections=3))
    try:
        connections = [connect(gateway) for _ in range(3)]
        for connection in connections[1:]:
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 401")
        assert post(f"{gateway.base_url}/chat/completions", {})[0] == 401
        assert connections[0].recv(100) == b""
        connections[2].sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connections[2].recv(1000).startswith(b"HTTP/1.1 401")
        for connection in connections:
            connection.close()
    finally:
        gateway.close()


def test_closed_connections_do_not_count() -> None:
    gateway = Gateway(limits=ConnectionLimits(max_connections=3))
    assert [post(f"{gateway.base_url}/chat/completions", {})[0] for _ in range(20)] == [401] * 20
    gateway.close()


def test_connection_above_the_limit_gets_503_if_none_is_idle() -> None:
    gateway = Gateway(limits=ConnectionLimits(max_connections=3))
    session = CallSession(agents=["low"], stop_strings={})
    gateway.open(session)
    body = json.dumps({"model": "low", "messages": [{"role": "user", "content": "Hello"}]}).encode()
    waiting = [connect(gateway) for _ in range(3)]
    for connection in waiting[:1]:
        send_request(connection, body, session.key)
    assert session.wait(10)
    for connection in waiting[1:]:
        send_request(connection, key=session.key)  # waits for the body
    time.sleep(1)
    status, answer = post(f"{gateway.base_url}/models", {})
    assert (status, answer["error"]["code"]) == (503, "too_many_connections")
    session.take()["low"].respond(Action("Yes.", True))
    assert waiting[0].recv(4000).startswith(b"HTTP/1.1 200")
    for connection in waiting:
        connection.close()
    gateway.close()
