"""The HTTP server of a process: it accepts chat completions of programs on the loopback interface, in a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.text import escape_controls
from ippo_cli.tasks.environment import Action
from ippo_cli.tasks.programs.chat_completions import (
    ChatRequest,
    RequestError,
    build_completion,
    build_message,
    find_ignored_settings,
    parse_chat_request,
    stream_events,
)
from ippo_cli.tasks.programs.connections import ConnectionLimits, ConnectionPool
from ippo_cli.tasks.programs.processes import LOOPBACK
from ippo_cli.tasks.programs.session import CallSession, PendingCall
from ippo_cli.tasks.template_args import REASONING_EFFORT, reads_reasoning_effort

if TYPE_CHECKING:
    from aiohttp import web

_log = logging.getLogger(__name__)
_http_log = logging.getLogger(f"{__name__}.http")
_reported: set[str] = set()  # settings without effect that requests had

MAX_REQUEST_BYTES = 8 << 20
MAX_HEADER_BYTES = 1 << 14
START_TIMEOUT_S = 30.0
RATE_LIMITED = 429
MAX_REPORTED = 32  # settings that are reported: their names are the program's
BACKLOG = 1024  # connections that programs may open at the same moment


class Gateway:
    """Chat completions by key: the key of a session selects the episode, the model's name the agent.

    A client sends the key as its API key, or as the first part of the path (`/KEY/v1`).
    """

    def __init__(self, host: str = LOOPBACK, port: int = 0, limits: ConnectionLimits | None = None) -> None:
        """Start the server. Raises `ConfigError` if aiohttp is missing, and `OSError` if the port is in use."""
        try:
            from aiohttp import web
        except ModuleNotFoundError as error:
            raise ConfigError(
                "an address for programs",
                "needs the package aiohttp, which is not installed",
                "run pip install 'ippo-cli[program]'",
            ) from error
        self._web = web
        self._host, self._requested_port = host, port
        self._limits = limits or ConnectionLimits()
        self._sessions: dict[str, CallSession] = {}
        self._lock = threading.Lock()
        started: Future[int] = Future()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(started,), name="gateway", daemon=True)
        self._thread.start()
        self.port = started.result(START_TIMEOUT_S)

    @property
    def base_url(self) -> str:
        """The address for clients of OpenAI's interface."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/v1"

    def open(self, session: CallSession) -> None:
        """Accept calls with the session's key."""
        with self._lock:
            self._sessions[session.key] = session

    def close_session(self, session: CallSession) -> None:
        """Accept no more calls of a session, and answer open ones by an error."""
        with self._lock:
            self._sessions.pop(session.key, None)
        session.close()

    def close(self) -> None:
        """End the server."""
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            self.close_session(session)
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join(START_TIMEOUT_S)

    def _run(self, started: Future[int]) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            runner, server = self.loop.run_until_complete(self._start())
            started.set_result(server.sockets[0].getsockname()[1])
        except BaseException as error:
            started.set_exception(error)
            return
        try:
            self.loop.run_forever()
        finally:
            server.close()
            self.loop.run_until_complete(runner.cleanup())
            self.loop.close()

    async def _start(self) -> tuple[web.AppRunner, asyncio.Server]:
        web = self._web
        if not _http_log.filters:
            _http_log.addFilter(_MalformedRequests())

        @web.middleware
        async def track_request(request: web.Request, handler: Any) -> web.StreamResponse:
            return await connections.handle(request, handler)

        application = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=[track_request])
        for prefix in ("", "/{key}"):
            application.router.add_post(f"{prefix}/v1/chat/completions", self._serve_completion)
            application.router.add_get(f"{prefix}/v1/models", self._list_models)
            application.router.add_get(f"{prefix}/v1/models/{{name:.+}}", self._show_model)
        application.router.add_route("*", "/{path:.*}", self._refuse_path)
        runner = web.AppRunner(
            application,
            handler_cancellation=True,  # a closed connection ends its handler
            access_log=None,
            logger=_http_log,
            max_field_size=MAX_HEADER_BYTES,
            keepalive_timeout=self._limits.idle_s,
        )
        await runner.setup()
        assert runner.server is not None
        connections = ConnectionPool(runner.server, self._limits)
        server = await self.loop.create_server(connections.accept, self._host, self._requested_port, backlog=BACKLOG)
        return runner, server

    def _find_session(self, request: web.Request) -> CallSession:
        """The session of a request's key. Raises `RequestError`."""
        header = request.headers.get("Authorization", "")
        key = request.match_info.get("key") or header.removeprefix("Bearer ").strip()
        with self._lock:
            session = self._sessions.get(key)
        if session is None:
            raise RequestError("the API key is not that of a running episode", status=401, code="invalid_api_key")
        return session

    async def _list_models(self, request: web.Request) -> web.Response:
        try:
            session = self._find_session(request)
        except RequestError as error:
            return self._web.json_response(error.to_body(), status=error.status)
        return self._web.json_response({"object": "list", "data": list(map(_describe_model, session.agents))})

    async def _show_model(self, request: web.Request) -> web.Response:
        try:
            name = request.match_info["name"]
            if name not in (agents := self._find_session(request).agents):
                rule = f"is not an agent; the agents are {', '.join(agents)}"
                raise RequestError(f"model={name!r:.60} {rule}", status=404, code="model_not_found")
        except RequestError as error:
            return self._web.json_response(error.to_body(), status=error.status)
        return self._web.json_response(_describe_model(name))

    async def _refuse_path(self, request: web.Request) -> web.Response:
        rule = "is not served: let the client use chat completions, at OPENAI_BASE_URL/chat/completions"
        if request.path.rstrip("/").endswith("/responses"):
            rule += "; openai-agents does after set_default_openai_api('chat_completions')"
        with suppress(RequestError):
            self._find_session(request).refuse_path(request.path[:60])
        error = RequestError(f"{request.method} {request.path} {rule}", status=404, code="not_found")
        return self._web.json_response(error.to_body(), status=error.status)

    async def _serve_completion(self, request: web.Request) -> web.StreamResponse:
        session: CallSession | None = None
        try:
            session = self._find_session(request)
            body = await self._read_body(request)
            chat = parse_chat_request(body, session.agents)
            for name, value in find_ignored_settings(body, session.max_new_tokens.get(chat.agent)).items():
                _report_ignored(name, value)
            key, action = await self._await_action(session, chat)
            effort = chat.call.reasoning_effort
            if effort is not None and action.tokenizer and not reads_reasoning_effort(action.tokenizer):
                _report_ignored(REASONING_EFFORT, effort)
            if action.refusal:
                raise RequestError(action.refusal, code=action.refusal_code)
        except RequestError as error:
            if session is not None:
                session.count_refusal()
            # OpenAI's client repeats some errors otherwise.
            headers = {} if error.status == RATE_LIMITED else {"x-should-retry": "false"}
            return self._web.json_response(error.to_body(), status=error.status, headers=headers)
        message = chat.call.response
        assert message is not None
        completion = build_completion(chat, action, _format_message(message), key)
        if not chat.streams:
            return self._web.json_response(completion)
        response = self._web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        for event in stream_events(completion, includes_usage=chat.includes_usage):
            await response.write(event.encode())
        await response.write_eof()
        return response

    async def _read_body(self, request: web.Request) -> Any:
        try:
            async with asyncio.timeout(self._limits.body_s):
                return await request.json()
        except TimeoutError as error:
            rule = f"the body did not arrive in {self._limits.body_s:g} s"
            raise RequestError(rule, status=408, code="request_timeout") from error
        except self._web.HTTPRequestEntityTooLarge as error:
            rule = f"the body has more than {MAX_REQUEST_BYTES} bytes"
            raise RequestError(rule, status=413, code="request_too_large") from error
        except (ValueError, RecursionError, LookupError) as error:
            raise RequestError("the body is not JSON") from error

    async def _await_action(self, session: CallSession, chat: ChatRequest) -> tuple[str, Action]:
        """The call's id and the agent's response. Raises `RequestError`."""
        result: asyncio.Future[Action | RequestError] = self.loop.create_future()

        def respond(outcome: Action | RequestError) -> None:
            if isinstance(outcome, Action) and not outcome.refusal:
                chat.call.response = build_message(outcome, chat.call, session.stop_strings.get(chat.agent, ()))
            with suppress(RuntimeError):  # the server has ended
                self.loop.call_soon_threadsafe(_set_result, result, outcome)

        call = PendingCall(request=chat, respond=respond)
        number = session.add(call)
        try:
            outcome = await result
        except asyncio.CancelledError:
            session.abandon(call)
            raise
        if isinstance(outcome, RequestError):
            raise outcome
        return f"{session.name}-{number}", outcome


def _report_ignored(name: str, value: Any) -> None:
    """Warn of a setting without effect, once in a process."""
    if name not in _reported and len(_reported) < MAX_REPORTED:
        _reported.add(name)
        rule = "which has no effect: responses are sampled from the policy as configured"
        if name in ("enable_thinking", "thinking"):
            rule = "which has no effect: arguments of the chat template are keys of chat_template_kwargs"
        _log.warning("a program's request has %s=%s, %s", escape_controls(name[:40]), _shorten(value), rule)


def _shorten(value: Any) -> str:
    """A value of a request in a line of a log."""
    return escape_controls(str(value)[:60])


def _describe_model(agent: str) -> dict[str, Any]:
    return {"id": agent, "object": "model", "created": 0, "owned_by": "ippo-cli"}


class _MalformedRequests(logging.Filter):
    """Drops tracebacks of requests that are not HTTP: anybody on the machine can send them."""

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        return kind is None or not kind.__module__.startswith("aiohttp.http")


def _set_result(future: asyncio.Future[Any], outcome: Any) -> None:
    if not future.done():
        future.set_result(outcome)


def _format_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A response's message with all fields of OpenAI's interface."""
    content = message["content"] or (None if message.get("tool_calls") else "")
    return {"refusal": None, **message, "content": content}
