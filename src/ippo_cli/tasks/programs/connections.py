"""Limits of the connections of a process's HTTP server: their number, their idle time and the time to send a body."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import web

MAX_CONNECTIONS = 4096
MIN_CONNECTIONS = 16
MAX_REFUSALS = 64  # connections that wait for their client to read the refusal
REFUSAL_S = 1.0
CONNECT_S = 0.5  # from the creation of a protocol to its connection: a few rounds of the loop


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of a server's connections."""

    idle_s: float = 75.0  # without a complete request header; clients such as httpx close idle connections after 5 s
    body_s: float = 60.0  # from the header to the end of the body
    max_connections: int | None = None  # None: half of the descriptors that the process may open

    def count(self) -> int:
        """The number of connections."""
        if self.max_connections is not None:
            return self.max_connections
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return MAX_CONNECTIONS if limit < 0 else max(MIN_CONNECTIONS, min(MAX_CONNECTIONS, limit // 2))


class ConnectionPool:
    """The connections of an aiohttp server. Above the limit a new one closes the longest idle ones, or gets 503."""

    def __init__(self, server: web.Server, limits: ConnectionLimits) -> None:
        self._server, self._limits = server, limits
        self._loop = asyncio.get_running_loop()
        self._last_use: dict[web.RequestHandler, float] = {}  # of accepted connections; closed ones are removed late
        self._new: set[web.RequestHandler] = set()  # accepted, and maybe not yet connected
        self._busy: set[web.RequestHandler] = set()
        self._num_refused = 0

    def accept(self) -> asyncio.Protocol:
        """The protocol of a new connection, for `create_server`."""
        limit = self._limits.count()
        if len(self._last_use) >= limit:
            self._close_idle(limit)
        if len(self._last_use) >= limit:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._refuse)
        connection = self._server()
        self._new.add(connection)
        self._last_use[connection] = accepted = self._loop.time()
        self._loop.call_later(CONNECT_S, self._new.discard, connection)
        self._loop.call_later(self._limits.idle_s, self._close_unused, connection, accepted)
        return connection

    def _close_idle(self, limit: int) -> None:
        """Forget closed connections. If none were closed, close some idle ones: many, because finding them is slow."""
        self._new.difference_update(self._server.connections)
        connected = [one for one in self._server.connections if one.transport is not None]
        present = {*connected, *self._new}
        self._last_use = {one: used for one, used in self._last_use.items() if one in present}
        if len(self._last_use) < limit:
            return
        idle = [one for one in connected if one not in self._busy and one in self._last_use]
        for one in sorted(idle, key=self._last_use.__getitem__)[: max(1, limit // 16)]:
            one.force_close()
            del self._last_use[one]

    async def handle(self, request: web.Request, handler: Callable[[web.Request], Awaitable[Any]]) -> Any:
        """Handle a request; its connection is not idle until then."""
        connection = request.protocol
        self._new.discard(connection)
        self._busy.add(connection)
        try:
            return await handler(request)
        finally:
            self._busy.discard(connection)
            if connection in self._last_use:
                self._last_use[connection] = self._loop.time()

    def _refuse(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a connection above the limit by 503."""
        if self._num_refused >= MAX_REFUSALS:
            writer.transport.abort()
            return
        message = "all connections of the server are in use; try again, or close connections that are not used"
        body = json.dumps({"error": {"message": message, "type": "server_error", "code": "too_many_connections"}})
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        self._num_refused += 1
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        # At once, the client's unread request would reset the connection before the client reads the answer.
        self._loop.call_later(REFUSAL_S, self._end_refusal, writer)

    def _end_refusal(self, writer: asyncio.StreamWriter) -> None:
        self._num_refused -= 1
        writer.transport.abort()

    def _close_unused(self, connection: web.RequestHandler, accepted: float) -> None:
        """Close a connection without a first request; older aiohttp has no limit before it."""
        if connection not in self._busy and self._last_use.get(connection) == accepted:
            connection.force_close()
