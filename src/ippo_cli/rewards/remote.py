"""HTTP client for reward servers: concurrent requests with timeouts and retries.

Imports httpx2 only for requests; it is a dependency of huggingface_hub.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from ippo_cli.config.errors import PreflightError
from ippo_cli.config.schema import RemoteRewardConfig
from ippo_cli.config.secrets import redact_text
from ippo_cli.engine import progress

MAX_TRIES = 3
# Delay between tries, doubled each time; a longer Retry-After of the server is respected up to the maximum.
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
CONNECT_TIMEOUT_S = 5.0
"""Timeout of the connection check before training."""
RETRY_STATUSES = (408, 429)  # and every 5xx
MAX_REPLY_BYTES = 2**20
"""Maximum size of a response."""
MAX_SHOWN_CHARACTERS = 200
MAX_REDIRECTS = 3
MAX_UNANSWERED = 8
"""Consecutive requests without a response after which the other requests are not sent."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

T = TypeVar("T")


class RequestFailed(RuntimeError):
    """A request without a usable response."""

    def __init__(self, message: str, *, answered: bool = True, can_retry: bool = True, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.answered, self.can_retry, self.wait_s = answered, can_retry, wait_s


@dataclass
class _ServerState:
    """Consecutive requests without a response, and the last failure."""

    num_unanswered: int = 0
    failure: RequestFailed | None = None


class RemoteClient:
    """Client for one URL: POSTs JSON and receives JSON.

    Redirects are followed only if they keep method, scheme, host and port, so the token is sent to no other host.
    Connections run in a separate thread with an event loop, so that timeouts interrupt requests in any state.
    """

    def __init__(self, config: RemoteRewardConfig, url: str) -> None:
        if find_spec("httpx2") is None:
            raise PreflightError(f"reward.kind={config.kind} needs httpx2; pip install 'ippo-cli[http]'")
        self.url, self.timeout_s, self.concurrency = url, config.timeout_s, config.concurrency
        self._token_env = config.token_env
        self._token = _read_token(config.token_env)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None

    def post_all(self, bodies: Sequence[Any], read: Callable[[int, Any], T]) -> list[T | Exception]:
        """The result of `read(place, answer)` for each body, or the request's exception, in the order of the bodies.

        A `RequestFailed` raised by `read` counts as a failure of the request, and is retried.
        """
        future = asyncio.run_coroutine_threadsafe(self._post_all(bodies, read), self._running_loop())
        try:
            return future.result()
        except BaseException:  # for example a signal: cancel the other requests
            future.cancel()
            raise

    def check_connection(self) -> None:
        """Raise `PreflightError` if no server listens at the URL; any response or a timeout counts as reachable."""
        failure = asyncio.run_coroutine_threadsafe(self._connection_error(), self._running_loop()).result()
        if failure is not None:
            reason = self._hide_token(str(failure) or type(failure).__name__)
            raise PreflightError(f"reward.url={self._display_url} cannot be reached ({reason}); start the server first")

    async def _connection_error(self) -> Exception | None:
        import httpx2

        failure = None
        for wait_s in (0.0, FIRST_WAIT_S, 2 * FIRST_WAIT_S):
            await asyncio.sleep(wait_s)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await self._get_client().head(self.url)
            except httpx2.ConnectError as error:
                failure = error
            except (TimeoutError, httpx2.HTTPError, OSError):
                return None
            else:
                return None
        return failure

    def close(self) -> None:
        """Close the connections and stop their thread."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(client.aclose(), loop).result(timeout=5.0)
        loop.call_soon_threadsafe(loop.stop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            threading.Thread(target=_run_loop, args=(loop,), name="reward requests", daemon=True).start()
        return self._loop

    async def _post_all(self, bodies: Sequence[Any], read: Callable[[int, Any], T]) -> list[T | Exception]:
        free, server = asyncio.Semaphore(self.concurrency), _ServerState()

        async def post_one(place: int, body: Any) -> T | Exception:
            async with free:
                if server.failure is not None and server.num_unanswered >= MAX_UNANSWERED:
                    return server.failure
                try:
                    found = await self._post_with_retries(body, lambda answer: read(place, answer))
                except RequestFailed as failure:
                    server.num_unanswered = 0 if failure.answered else server.num_unanswered + 1
                    server.failure = failure
                    return failure
                except (TypeError, ValueError) as error:  # the body cannot be encoded as JSON
                    return error
                server.num_unanswered = 0
                return found

        calls: list[Coroutine[Any, Any, T | Exception]] = [post_one(place, body) for place, body in enumerate(bodies)]
        return list(await asyncio.gather(*calls))

    async def _post_with_retries(self, body: Any, read: Callable[[Any], T]) -> T:
        """The parsed response; transient failures are retried."""
        content = json.dumps(body, allow_nan=False, default=_to_json).encode(errors="replace")
        wait_s = FIRST_WAIT_S
        for left in reversed(range(MAX_TRIES)):
            try:
                with progress.grant_time(self.timeout_s):
                    return read(await self._request_json(content))
            except RequestFailed as failure:
                if not left or not failure.can_retry:
                    raise
                pause_s = min(max(wait_s, failure.wait_s), LONGEST_WAIT_S)
            with progress.grant_time(pause_s):
                await asyncio.sleep(pause_s)
            wait_s *= 2
        raise AssertionError("unreachable: the last try returns or raises")

    async def _request_json(self, content: bytes) -> Any:
        import httpx2

        try:
            async with asyncio.timeout(self.timeout_s):
                status, text, wait_s = await self._post(content)
        except (TimeoutError, httpx2.TimeoutException):
            raise RequestFailed(f"{self._display_url} took longer than {self.timeout_s:g} s", answered=False) from None
        except (httpx2.TransportError, httpx2.DecodingError, OSError) as error:
            reason = self._hide_token(str(error) or type(error).__name__)
            raise RequestFailed(f"{self._display_url} cannot be reached ({reason})", answered=False) from None
        excerpt = self._hide_token(text[: 4 * MAX_SHOWN_CHARACTERS].decode(errors="replace"))[:MAX_SHOWN_CHARACTERS]
        if status >= 300:
            can_retry = status in RETRY_STATUSES or status >= 500
            raise RequestFailed(
                f"{self._display_url} returned status {status}: {excerpt}", can_retry=can_retry, wait_s=wait_s
            )
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise RequestFailed(f"{self._display_url} returned invalid JSON: {excerpt}") from None

    async def _post(self, content: bytes) -> tuple[int, bytes, float]:
        """Status, body, and seconds of the Retry-After header."""
        url = self.url
        for _ in range(MAX_REDIRECTS + 1):
            async with self._get_client().stream("POST", url, content=content, headers=self._headers()) as response:
                if 300 <= response.status_code < 400:
                    url = self._redirect_target(url, response.status_code, response.headers.get("location", ""))
                    continue
                body = bytearray()
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > MAX_REPLY_BYTES:
                        raise RequestFailed(
                            f"{self._display_url} returned more than {MAX_REPLY_BYTES} bytes", can_retry=False
                        )
                return response.status_code, bytes(body), _parse_retry_after(response.headers.get("retry-after"))
        raise RequestFailed(f"{self._display_url} redirects more than {MAX_REDIRECTS} times", can_retry=False)

    def _redirect_target(self, url: str, status: int, location: str) -> str:
        target = urljoin(url, location)
        if status not in (307, 308) or _origin(target) != _origin(self.url):
            host = self._hide_token(f"{urlsplit(target).scheme}://{urlsplit(target).netloc}")
            raise RequestFailed(
                f"{self._display_url} redirects ({status}) to {host}, which is not followed; set the final URL",
                can_retry=False,
            )
        return target

    def _headers(self) -> dict[str, str]:
        plain = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        return plain | ({"Authorization": f"Bearer {self._token}"} if self._token else {})

    def _get_client(self) -> Any:
        if self._client is None:
            import httpx2

            self._client = httpx2.AsyncClient(
                timeout=self.timeout_s,
                follow_redirects=False,
                limits=httpx2.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency),
                mounts={f"all://{host}": None for host in LOOPBACK},  # no proxy for local servers
            )
        return self._client

    @property
    def _display_url(self) -> str:
        parts = urlsplit(self.url)
        return self._hide_token(
            f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
        )

    def _hide_token(self, text: str) -> str:
        """The text with the token replaced by the name of its variable."""
        return redact_text(text.replace(self._token, f"<{self._token_env}>") if self._token else text)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _read_token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise PreflightError(
            f"reward.token_env={variable}: this environment variable is not set; export {variable}=..."
        )
    if not (token.isascii() and token.isprintable()):
        raise PreflightError(
            f"reward.token_env={variable}: its value is not valid in an HTTP header; use printable ASCII"
        )
    return token


def _origin(url: str) -> tuple[str, str | None, int | None]:
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return "", None, None


def _parse_retry_after(header: str | None) -> float:
    """Seconds of a Retry-After header, which is a number of seconds or a date; 0 if it is invalid."""
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return 0.0
    return seconds if 0.0 <= seconds < float("inf") else 0.0


def _to_json(value: Any) -> Any:
    """Convert numpy and torch arrays and scalars to JSON types."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"the example contains {value!r:.60}, which cannot be encoded as JSON")
