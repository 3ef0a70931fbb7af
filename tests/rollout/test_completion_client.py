"""Requests to a server: many at once, failures, and silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fake_server import Answer, serve

from ippo_cli.rollout.completion_client import CompletionClient, ServerFailure

pytest.importorskip("httpx2", reason="needs the extra `http`")


@contextmanager
def connect(answer: Answer, *, concurrency: int = 8, silence_limit_s: float = 5.0) -> Iterator[CompletionClient]:
    with serve(answer) as address:
        client = CompletionClient(address, concurrency=concurrency, silence_limit_s=silence_limit_s)
        try:
            yield client
        finally:
            client.close()


def collect_all(client: CompletionClient) -> dict[int, Any]:
    found: dict[int, Any] = {}
    while client.num_in_flight:
        found |= dict(client.collect(0.2))
    return found


def test_answers_belong_to_their_requests() -> None:
    with connect(lambda path, body: (200, {"path": path, "twice": 2 * body["x"]})) as client:
        for key in range(40):
            client.submit(key, "/double", {"x": key})
        assert collect_all(client) == {key: {"path": "/double", "twice": 2 * key} for key in range(40)}


def test_requests_run_at_once_up_to_the_limit() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def answer(path: str, body: Any) -> tuple[int, Any]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1
        return 200, {}

    with connect(answer, concurrency=3) as client:
        for key in range(9):
            client.submit(key, "/", {})
        collect_all(client)
    assert most == 3


def test_submit_and_collect_do_not_wait_for_a_slow_answer() -> None:
    release = threading.Event()
    with connect(lambda path, body: (release.wait(5), (200, {}))[1]) as client:
        start = time.monotonic()
        client.submit(0, "/", {})
        assert client.collect(0.1) == []
        assert time.monotonic() - start < 4
        release.set()
        assert collect_all(client) == {0: {}}


def test_busy_server_is_asked_again() -> None:
    statuses = iter([503, 200])
    with connect(lambda path, body: (next(statuses), {})) as client:
        client.submit(0, "/", {})
        assert collect_all(client) == {0: {}}


def test_rejected_request_has_the_servers_message() -> None:
    with connect(lambda path, body: (400, {"error": {"message": "prompt is too long"}})) as client:
        client.submit(0, "/", {})
        with pytest.raises(ServerFailure, match="with status 400: prompt is too long") as failure:
            collect_all(client)
        assert failure.value.status == 400


def test_silent_server_is_a_failure() -> None:
    release = threading.Event()
    with connect(lambda path, body: (release.wait(5), (200, {}))[1], silence_limit_s=0.4) as client:
        client.submit(0, "/", {})
        with pytest.raises(ServerFailure, match="has not answered for"):
            collect_all(client)
        release.set()


def test_server_that_closes_its_port_is_a_failure_before_the_limit() -> None:
    release, began = threading.Event(), time.monotonic()
    with serve(lambda path, body: (release.wait(30), (200, {}))[1]) as address:
        client = CompletionClient(address, concurrency=1, silence_limit_s=20.0)
        client.submit(0, "/", {})
        assert client.collect(0.5) == []
    with pytest.raises(ServerFailure, match="has closed its port"):
        collect_all(client)
    assert time.monotonic() - began < 15
    release.set()
    client.close()


def test_counted_tokens_are_progress() -> None:
    release, count = threading.Event(), iter(range(1000))

    def answer(path: str, body: Any) -> tuple[int, Any]:
        if path == "/metrics":
            return 200, f'# HELP\nvllm:generation_tokens_total{{model_name="m"}} {next(count)}.0\n'
        release.wait(5)
        return 200, {}

    with connect(answer, silence_limit_s=0.3) as client:
        client.submit(0, "/", {})
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            assert client.collect(0.05) == []
        release.set()
        assert collect_all(client) == {0: {}}


def test_cancelled_requests_return_nothing() -> None:
    release = threading.Event()
    with connect(lambda path, body: (release.wait(5) if body["x"] else None, (200, body))[1]) as client:
        client.submit(0, "/", {"x": 1})
        client.cancel()
        client.submit(0, "/", {"x": 0})  # the same key, of a new round
        assert collect_all(client) == {0: {"x": 0}}
        release.set()


def test_answers_that_arrived_before_cancellation_are_dropped() -> None:
    with connect(lambda path, body: (200, body)) as client:
        client.submit(0, "/", {"x": 1})
        end = time.monotonic() + 10
        while client._answers.empty() and time.monotonic() < end:
            time.sleep(0.01)
        client.cancel()
        client.submit(0, "/", {"x": 2})
        assert collect_all(client) == {0: {"x": 2}}


def test_unreachable_server_is_a_failure_of_a_call() -> None:
    with serve(lambda path, body: (200, {})) as address:
        pass
    client = CompletionClient(address, concurrency=1, silence_limit_s=1)
    with pytest.raises(ServerFailure, match="cannot be reached"):
        client.call("GET", "/health", timeout_s=5)
    client.close()
