"""Sessions of an OpenEnv server: its schema over HTTP, and WebSocket connections with one environment each."""

from __future__ import annotations

import ipaddress
import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, NoReturn
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from ippo_cli.config.errors import ConfigError

MAX_MESSAGE_BYTES = 100 * 2**20
CLOSE_TIMEOUT_S = 1.0
"""Wait for a server to end a session; it ends by itself once the connection is gone."""
CAPACITY_TIMEOUT_S, CAPACITY_POLL_S = 5.0, 0.2
"""Wait for a free session: a server ends the sessions of closed connections a moment later."""
MAX_SHOWN_CHARACTERS = 300
WRONG_FIELDS = ("extra_forbidden", "missing")
"""Validation errors that are caused by the names of an action's fields, not by their values."""


class ServerError(RuntimeError):
    """A server does not answer, or answers with an error; it fails one episode."""


class ConnectionLost(ServerError):
    """The connection of a session was closed."""


class ServerFull(ServerError):
    """The server has no free session."""


class InvalidAction(ServerError):
    """The server did not apply an action because the value of a field is invalid."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The observation after a reset or a step, as JSON values."""

    observation: dict[str, Any]
    reward: float  # 0 if the server sends none
    done: bool
    metadata: dict[str, Any]


class OpenEnvServer:
    """The address of a server, and the number of sessions that this process has there."""

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float) -> None:
        parts = urlsplit(url)
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self._is_secure, self._address = parts.scheme in ("https", "wss"), self.url.partition("://")[2]
        self._is_local = _is_loopback(parts.hostname or "")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._lock, self._num_sessions = Lock(), 0

    def fetch_schema(self) -> dict[str, Any] | None:
        """Return the JSON schemas of actions and observations; None if the server has none.

        Raises `ConfigError` if the server does not answer.
        """
        request = urllib.request.Request(f"{'https' if self._is_secure else 'http'}://{self._address}/schema")
        for name, value in self._headers.items():
            request.add_unredirected_header(name, value)
        opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if self._is_local else []))
        try:
            with opener.open(request, timeout=self.timeout_s) as answer:
                schema = json.loads(answer.read(MAX_MESSAGE_BYTES))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise self._config_error(f"answers with HTTP status {error.code} to /schema") from error
        except (OSError, ValueError) as error:  # URLError is an OSError
            reason = "no answer" if isinstance(error, TimeoutError) else str(getattr(error, "reason", error))
            raise self._config_error(
                f"does not answer as an OpenEnv server ({reason:.{MAX_SHOWN_CHARACTERS}})"
            ) from error
        return schema if isinstance(schema, dict) else None

    def connect(self) -> ClientConnection:
        """Open a connection; the server creates an environment for it. Raises `ServerError`."""
        try:
            # From websockets 17 on, `connect` is only a context manager; `disconnect` is its exit.
            connection = connect(
                f"{'wss' if self._is_secure else 'ws'}://{self._address}/ws",
                additional_headers=self._headers,
                open_timeout=self.timeout_s,
                close_timeout=CLOSE_TIMEOUT_S,
                ping_interval=None,  # a slow step may block a server's pongs; `timeout_s` bounds each request
                max_size=MAX_MESSAGE_BYTES,
                **({"proxy": None} if self._is_local else {}),
            ).__enter__()
        except (OSError, WebSocketException) as error:
            reason = f"no answer within {self.timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            raise ServerError(f"{self.url}: cannot be reached ({reason:.{MAX_SHOWN_CHARACTERS}})") from error
        with self._lock:
            self._num_sessions += 1
        return connection

    def disconnect(self, connection: ClientConnection, *, wait: bool) -> None:
        """Close a connection; `wait` until the server has ended its session, which frees it for others."""
        with self._lock:
            self._num_sessions -= 1
        with suppress(Exception):
            if wait:
                connection.send(json.dumps({"type": "close"}))
                while True:
                    connection.recv(timeout=CLOSE_TIMEOUT_S)  # raises once the server has closed the connection
        with suppress(Exception):
            connection.close()

    def raise_full(self, failure: ServerFull) -> NoReturn:
        raise ConfigError(
            f"task.url={self.url}",
            f"has no free session for another episode ({failure}; this process has {self._num_sessions}); "
            "every episode in progress needs one",
            "start the server with a higher max_concurrent_envs, or set task.max_sessions to what it allows",
        ) from failure

    def _config_error(self, rule: str) -> ConfigError:
        return ConfigError(f"task.url={self.url}", rule, "start the server first (its address without /ws)")


class OpenEnvSession:
    """An environment on a server, for one episode at a time.

    `reset` opens the connection, also in place of one that was lost between episodes. `step` never does: another
    connection has another environment, which would continue an episode that it did not begin.
    """

    def __init__(self, server: OpenEnvServer) -> None:
        self.server = server
        self._connection: ClientConnection | None = None

    def reset(self, arguments: Mapping[str, Any]) -> Reply:
        """Begin an episode. Raises `ServerError`, and `ConfigError` if the server has no free session."""
        is_reused = self._connection is not None
        deadline = time.monotonic() + CAPACITY_TIMEOUT_S
        while True:
            try:
                return self._request({"type": "reset", "data": dict(arguments)})
            except ConnectionLost:
                self.close()
                if not is_reused:
                    raise
                is_reused = False
            except ServerFull as failure:
                self.close()
                if time.monotonic() > deadline:
                    self.server.raise_full(failure)
                time.sleep(CAPACITY_POLL_S)

    def step(self, action: Mapping[str, Any]) -> Reply:
        """Apply an action. Raises `ServerError`, and `InvalidAction` if the action was not applied."""
        if self._connection is None:
            raise ConnectionLost(f"{self.server.url}: the episode's connection was lost")
        return self._request({"type": "step", "data": dict(action)})

    def close(self, *, wait: bool = False) -> None:
        """Close the connection, and with it the environment."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self.server.disconnect(connection, wait=wait)

    def _request(self, message: Mapping[str, Any]) -> Reply:
        is_open = self._connection is not None
        self._connection = connection = self._connection or self.server.connect()
        url = self.server.url
        with suppress(ConnectionClosed):  # a refused session has sent its error before
            if is_open:
                self._check_no_answer_waits(connection)
            connection.send(json.dumps(message))
        try:
            answer = connection.recv(timeout=self.server.timeout_s)
        except TimeoutError:
            self.close()  # a later answer would be taken for that of another request
            raise ServerError(
                f"{url}: no answer to {message['type']} within task.timeout_s={self.server.timeout_s:g}"
            ) from None
        except ConnectionClosed as error:
            self.close()
            raise ConnectionLost(f"{url}: the connection was closed ({error})") from error
        return self._read(answer)

    def _check_no_answer_waits(self, connection: ClientConnection) -> None:
        """Raise `ConnectionLost` for a second answer to a request: it would be taken for that of the next one."""
        with suppress(TimeoutError):
            connection.recv(timeout=0)
            self.close()
            raise ConnectionLost(f"{self.server.url}: two answers to one request")

    def _read(self, answer: str | bytes) -> Reply:
        url = self.server.url
        try:
            message = json.loads(answer)
            kind, data = message["type"], message["data"]
            if kind == "error":
                raise _server_error(url, data)
            observation, reward, metadata = data["observation"], data.get("reward"), data.get("metadata")
            if kind != "observation" or not isinstance(observation, dict):
                raise ValueError
            if not isinstance(data.get("done"), bool | int | None):
                raise ServerError(f"{url}: done is not true or false: {data['done']!r:.40}")
            if not (reward is None or (isinstance(reward, int | float) and math.isfinite(reward))):
                raise ServerError(f"{url}: the reward is not a finite number: {reward!r:.40}")
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ServerError(f"{url}: not a message of OpenEnv: {answer!r:.{MAX_SHOWN_CHARACTERS}}") from None
        metadata = metadata or observation.get("metadata")
        return Reply(
            observation=observation,
            reward=float(reward or 0.0),
            done=bool(data.get("done")),
            metadata=metadata if isinstance(metadata, dict) else {},
        )


def _server_error(url: str, data: Mapping[str, Any]) -> ServerError:
    code, text = data.get("code"), str(data.get("message"))
    errors = [error for error in data.get("errors") or () if isinstance(error, dict)]
    if errors:
        places = (f"{'.'.join(map(str, error.get('loc', ())))}: {error.get('msg')}" for error in errors)
        text = f"{text} ({'; '.join(places)})"
    message = f"{url}: {code}: {text:.{MAX_SHOWN_CHARACTERS}}"
    if code == "CAPACITY_REACHED":
        return ServerFull(f"{text:.{MAX_SHOWN_CHARACTERS}}")
    if code == "VALIDATION_ERROR" and errors and not any(error.get("type") in WRONG_FIELDS for error in errors):
        return InvalidAction(message)
    return ServerError(message)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
