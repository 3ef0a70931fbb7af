"""Tools of a server of the Model Context Protocol that is a child process (stdio), with the official client `mcp`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.engine import progress
from ippo_cli.tasks.tools.functions import format_error, format_result
from ippo_cli.tasks.tools.tool import Tool

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


def load_server_tools(command: tuple[str, ...], setting: str) -> list[Tool]:
    """Start a server, list its tools, and end it. Raises `ConfigError`."""
    place = f"{setting}=mcp:{' '.join(command)}"
    try:
        import mcp  # noqa: F401  # pyright: ignore
    except ImportError as error:
        raise ConfigError(place, "needs the package mcp", "pip install 'ippo-cli[mcp]'") from error
    server = McpServer(command)
    try:
        listed = server.list_tools()
    except Exception as error:  # of the client, or of the server
        raise ConfigError(
            place, f"cannot be started ({format_error(error)})", "run the command by itself to see its output"
        ) from error
    finally:
        server.close()
    if not listed:
        raise ConfigError(place, "offers no tools", "use a server with tools")
    return [
        Tool(
            name=tool.name,
            schema={
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description or "",
                    "parameters": _read_field(tool, "inputSchema"),
                },
            },
            source=command,
        )
        for tool in listed
    ]


def _read_field(message: Any, name: str) -> Any:
    """A field by its name in the protocol: the attributes of versions 1 and 2 of the client differ."""
    return message.model_dump(by_alias=True)[name]


class McpServer:
    """One server process, started by the first call; one call at a time. A call that fails ends the process."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._connection: _Connection | None = None

    def list_tools(self) -> list[Any]:
        """The tools that the server describes. Raises the client's errors."""
        session = self._connect().session
        return (self._run(session.list_tools(), START_TIMEOUT_S)).tools

    def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float) -> tuple[bool, str]:
        """Whether the call succeeded, and the text of its result or of its error."""
        try:
            session = self._connect().session
            result = self._run(session.call_tool(name, dict(arguments)), timeout_s)
        except TimeoutError:
            self.close()
            return False, f"the call took longer than {timeout_s:g} s"
        except Exception as error:  # the server ended, or its answer is not one of the protocol
            self.close()
            return False, f"the server failed ({format_error(error)})"
        texts = [getattr(part, "text", f"[{part.type}]") for part in result.content]
        return not _read_field(result, "isError"), format_result("\n".join(texts))

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> _Connection:
        if self._connection is None:
            self._connection = _Connection(self._command)
        return self._connection

    def _run(self, request: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        assert self._connection is not None
        with progress.grant_time(timeout_s):
            return self._connection.run(request, timeout_s)


class _Connection:
    """A started server and its session, in a thread with an event loop: one task opens and closes the client."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._ready: Future[tuple[Any, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=self._serve, name="mcp", daemon=True)
        self._thread.start()
        self.session, self._loop, self._stop = self._ready.result(START_TIMEOUT_S + STOP_TIMEOUT_S)

    def run(self, request: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        """The answer to a request; raises `TimeoutError`."""
        answer = asyncio.run_coroutine_threadsafe(asyncio.wait_for(request, timeout_s), self._loop)
        return answer.result(timeout_s + STOP_TIMEOUT_S)  # the loop may end in between

    def close(self) -> None:
        """End the session, and the process within `STOP_TIMEOUT_S`."""
        with suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_TIMEOUT_S)

    def _serve(self) -> None:
        try:
            asyncio.run(self._hold_session())
        except BaseException as error:  # the thread's errors are those of the first use
            if not self._ready.done():
                self._ready.set_exception(error)

    async def _hold_session(self) -> None:
        from mcp import ClientSession, StdioServerParameters  # pyright: ignore
        from mcp.client.stdio import stdio_client  # pyright: ignore

        parameters = StdioServerParameters(command=self._command[0], args=list(self._command[1:]))
        stop = asyncio.Event()
        async with stdio_client(parameters) as (read, write), ClientSession(read, write) as session:
            await asyncio.wait_for(session.initialize(), START_TIMEOUT_S)  # an error ends the process
            self._ready.set_result((session, asyncio.get_running_loop(), stop))
            await stop.wait()
