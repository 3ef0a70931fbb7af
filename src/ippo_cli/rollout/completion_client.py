"""HTTP client for servers of completions: many requests at once, and a limit on the time without any progress."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from importlib.util import find_spec
from queue import Empty, SimpleQueue
from typing import Any

from ippo_cli.config.errors import EngineError
from ippo_cli.config.secrets import redact_text
from ippo_cli.engine import progress

UNIX = "unix:"
"""Prefix of the address of a server that listens at a socket in the file system."""
KEEP_ALIVE_S = 2.0
"""Below the time after which servers close idle connections (5 s), which would fail the next request."""
CONNECT_TIMEOUT_S = 5.0
TRIES = 3
FIRST_WAIT_S = 0.5
RETRY_STATUSES = (408, 429, 502, 503, 504)
MAX_SHOWN_CHARACTERS = 500
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
PROGRESS = re.compile(r"^\w+:(?:generation|prompt)_tokens_total\S* (\S+)$", re.MULTILINE)
"""Counters of tokens, as vLLM and SGLang report them at `/metrics`."""


class ServerFailure(RuntimeError):
    """A request without a usable response; `status` is None if there was none at all.

    `is_refused`: whether the server accepts no connections.
    """

    def __init__(self, message: str, *, status: int | None = None, is_refused: bool = False) -> None:
        super().__init__(message)
        self.status, self.is_refused = status, is_refused


class CompletionClient:
    """Client for one server; requests run in a thread of its own with an event loop.

    `address`: `http://HOST:PORT`, or `unix:PATH`. `silence_limit_s`: the longest time in which, with requests in
    flight, the server neither answers one nor counts further tokens.
    """

    def __init__(
        self, address: str, *, concurrency: int, silence_limit_s: float, headers: Mapping[str, str] | None = None
    ) -> None:
        if find_spec("httpx2") is None:
            raise EngineError("requests to inference servers need httpx2; pip install 'ippo-cli[http]'")
        self.address, self._silence_limit_s = address.rstrip("/"), silence_limit_s
        self._headers, self._concurrency = dict(headers or {}), concurrency
        self._free = asyncio.Semaphore(concurrency)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._in_flight: dict[int, Future[None]] = {}
        self._round = 0  # answers to requests of earlier rounds are dropped
        self._answers: SimpleQueue[tuple[int, int, Any]] = SimpleQueue()
        self._last_progress, self._last_probe, self._num_tokens = time.monotonic(), time.monotonic(), ""

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def submit(self, key: int, path: str, body: Mapping[str, Any]) -> None:
        """Send a request; `collect` returns its answer with `key`."""
        if not self._in_flight:
            self._last_progress = self._last_probe = time.monotonic()
        assert key not in self._in_flight
        self._in_flight[key] = self._start(self._complete(self._round, key, path, dict(body)))

    def collect(self, wait_s: float) -> list[tuple[int, Any]]:
        """Answers that have arrived; waits up to `wait_s` for the first. Raises `ServerFailure`."""
        found: list[tuple[int, Any]] = []
        while self._in_flight:
            try:
                current, key, answer = self._answers.get(timeout=wait_s if not found else 0.0)
            except Empty:
                break
            if current != self._round:
                continue
            del self._in_flight[key]
            if isinstance(answer, Exception):
                raise answer
            found.append((key, answer))
        now = time.monotonic()
        if found:
            self._last_progress = now
            progress.heartbeat()
        elif self._in_flight:
            self._check_progress(now)
        return found

    def cancel(self) -> None:
        """Forget the requests in flight, and close their connections, so that the server stops them."""
        self._round += 1
        for future in self._in_flight.values():
            future.cancel()
        self._in_flight.clear()

    def call(self, method: str, path: str, body: Any = None, *, timeout_s: float) -> Any:
        """One request at once: the parsed response, its text if it is not JSON. Raises `ServerFailure`."""
        with progress.grant_time(timeout_s):
            return self.start_call(method, path, body, timeout_s=timeout_s).result()

    def start_call(self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None) -> Future[Any]:
        """Start a request; its result is that of `call`. `timeout_s` None: it has no time limit."""
        return self._start(self._request(method, path, body, timeout_s))

    def close(self) -> None:
        """Close the connections and stop their thread."""
        self.cancel()
        loop, self._loop = self._loop, None
        if loop is None:
            return
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(client.aclose(), loop).result(timeout=5.0)
        loop.call_soon_threadsafe(loop.stop)

    def _check_progress(self, now: float) -> None:
        """Raise `ServerFailure` after too long a silence; long responses may take longer than that."""
        silence = now - self._last_progress
        if silence < self._silence_limit_s / 4 or now - self._last_probe < self._silence_limit_s / 10:
            return
        self._last_probe = now
        try:
            text = self.call("GET", "/metrics", timeout_s=min(CONNECT_TIMEOUT_S, self._silence_limit_s / 10))
            num_tokens = " ".join(PROGRESS.findall(text)) if isinstance(text, str) else ""
            if num_tokens != self._num_tokens:
                self._num_tokens, self._last_progress = num_tokens, time.monotonic()
                progress.heartbeat()
                return
        except ServerFailure as failure:
            if failure.is_refused:  # a server that shuts down may keep the connections of its last requests
                raise ServerFailure(f"the server has closed its port, and not answered for {silence:.0f} s") from None
        with suppress(ServerFailure):  # vLLM, while weights are transferred
            state = self.call("GET", "/is_paused", timeout_s=min(CONNECT_TIMEOUT_S, self._silence_limit_s / 10))
            if isinstance(state, dict) and state.get("is_paused") is True:
                self._last_progress = time.monotonic()
                return
        if silence > self._silence_limit_s:
            raise ServerFailure(f"the server has not answered for {silence:.0f} s")

    async def _complete(self, current: int, key: int, path: str, body: dict[str, Any]) -> None:
        answer: Any
        try:
            async with self._free:
                answer = await self._request_with_retries(path, body)
        except Exception as error:
            answer = error if isinstance(error, ServerFailure) else ServerFailure(f"{type(error).__name__}: {error}")
        self._answers.put((current, key, answer))

    async def _request_with_retries(self, path: str, body: dict[str, Any]) -> Any:
        """A completion is a function of the request, so that it may be sent again."""
        wait_s = FIRST_WAIT_S
        for left in reversed(range(TRIES)):
            try:
                return await self._request("POST", path, body, None)
            except ServerFailure as failure:
                if not left or (failure.status is not None and failure.status not in RETRY_STATUSES):
                    raise
            await asyncio.sleep(wait_s)
            wait_s *= 2
        raise AssertionError("unreachable: the last try returns or raises")

    async def _request(self, method: str, path: str, body: Any, timeout_s: float | None) -> Any:
        import httpx2

        headers = {"Content-Type": "application/json"} | self._headers
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._get_client().request(method, self._base + path, content=content, headers=headers)
        except (TimeoutError, httpx2.TimeoutException):
            limit = "" if timeout_s is None else f" within {timeout_s:g} s"
            raise ServerFailure(f"the server did not answer {path}{limit}") from None
        except (httpx2.TransportError, httpx2.DecodingError, OSError) as error:
            reason = redact_text(str(error) or type(error).__name__)
            raise ServerFailure(
                f"the server cannot be reached ({reason})", is_refused=isinstance(error, httpx2.ConnectError)
            ) from None
        if response.status_code >= 300:
            excerpt = redact_text(_error_message(response.text))[:MAX_SHOWN_CHARACTERS]
            raise ServerFailure(
                f"the server answered {path} with status {response.status_code}: {excerpt}",
                status=response.status_code,
            )
        try:
            return json.loads(response.text)
        except ValueError:
            return response.text

    @property
    def _base(self) -> str:
        return "http://server" if self.address.startswith(UNIX) else self.address

    def _get_client(self) -> Any:
        if self._client is None:
            import httpx2

            limits = httpx2.Limits(
                max_connections=self._concurrency + 4,  # beside completions: calls
                max_keepalive_connections=self._concurrency + 4,
                keepalive_expiry=KEEP_ALIVE_S,
            )
            timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S)
            if self.address.startswith(UNIX):
                transport = httpx2.AsyncHTTPTransport(uds=self.address.removeprefix(UNIX), limits=limits)
                self._client = httpx2.AsyncClient(transport=transport, timeout=timeout)
            else:
                local = {f"all://{host}": None for host in LOOPBACK}  # no proxy for local servers
                self._client = httpx2.AsyncClient(limits=limits, timeout=timeout, mounts=local)
        return self._client

    def _start(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            threading.Thread(target=_run_loop, args=(loop,), name="completion requests", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _error_message(text: str) -> str:
    """The message in an error of OpenAI's format, else the text."""
    try:
        found = json.loads(text)
        return str(found["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text
